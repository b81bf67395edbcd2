"""The log of the process: lines for people or JSON, written by a thread of its own.

A reader that stops reading, such as a full pipe, must not stop the server: what it cannot take is dropped and counted.
"""

import json
import logging
import queue
import threading
import time
from typing import TextIO

from dragoman.service.telemetry.call_log import FIELDS

MAX_WAITING = 10_000
"""Lines that wait for a slow reader; further ones are dropped."""

FLUSH_SECONDS = 1.0
"""How long the end of the process waits for what was not written yet."""


def configure(form: str, stream: TextIO) -> None:
    """Log to `stream`, as "console" or "json" lines, from level INFO on."""
    handler = QuietHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


class ConsoleFormatter(logging.Formatter):
    """Time, level, place and message; the fields of a line as NAME=VALUE."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Part of logging.Formatter."""
        # The message of a line with fields says what two of them say.
        fields = {name: value for name, value in _fields(record).items() if name not in ("method", "code")}
        return " ".join((super().formatMessage(record), *(f"{name}={_plain(fields[name])}" for name in fields)))


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII; an exception is in its field "exception"."""

    def format(self, record: logging.LogRecord) -> str:
        """Part of logging.Formatter."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class QuietHandler(logging.Handler):
    """Gives lines to a thread that writes them to `stream`; never waits for it but to flush, and then not for long."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._waiting: queue.Queue[str | threading.Event] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Part of logging.Handler."""
        try:
            self._waiting.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Part of logging.Handler: wait until what was logged so far is written."""
        reached = threading.Event()
        try:
            self._waiting.put_nowait(reached)
        except queue.Full:
            return
        reached.wait(FLUSH_SECONDS)

    def _write(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            dropped, self._dropped = self._dropped, 0
            try:
                if dropped:
                    print(f"{dropped} lines of the log were dropped: nobody read them", file=self._stream)
                print(item, file=self._stream, flush=True)
            except (OSError, ValueError):
                # Whoever read the log has gone. There is nobody to tell.
                continue


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, FIELDS, {})
    return fields


def _plain(value: object) -> str:
    """A value on one line of ASCII, quoted where it could be taken for something else."""
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) and value.isascii() and value.isalnum() else json.dumps(value)
