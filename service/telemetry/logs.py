"""The log of the process: lines for people or JSON, written by a thread of its own.

The standard library's QueueHandler and QueueListener carry the lines, python-json-logger writes the JSON. A reader that
stops reading, such as a full pipe, must not stop the server. Three things are therefore done here:

- Lines beyond MAX_QUEUED are dropped and counted. QueueHandler prints a traceback for each of them.
- The listener writes to the stream itself. A StreamHandler that is stuck in a write holds its lock, for which
  `logging.shutdown` would wait at exit.
- `flush` waits FLUSH_SECONDS at most. `QueueListener.stop` waits for its thread without a bound.
"""

import json
import logging
import queue
import time
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter as BaseJsonFormatter

from dragoman.service.telemetry.call_log import FIELDS

MAX_QUEUED = 10_000
"""Lines that are kept for a slow reader; further ones are dropped."""

FLUSH_SECONDS = 1.0
"""How long a flush, such as the one at exit, waits for the reader."""


def configure(form: str, stream: TextIO) -> None:
    """Log to `stream`, as "console" or "json" lines, from level INFO on."""
    handler = DroppingHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


class ConsoleFormatter(logging.Formatter):
    """Formats a line as time, level, logger and message, then its fields as NAME=VALUE."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Part of logging.Formatter."""
        # The message of a line with fields consists of these two.
        fields = {name: value for name, value in _fields(record).items() if name not in ("method", "code")}
        return " ".join((super().formatMessage(record), *(f"{name}={_plain(fields[name])}" for name in fields)))


class JsonFormatter(BaseJsonFormatter):
    """Formats a line as one JSON object in ASCII; a traceback is its field "exception"."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(
            ("asctime", "levelname", "name", "message"),
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "exception"},
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Part of pythonjsonlogger.core.BaseJsonFormatter."""
        fields: dict[str, Any] = log_data.pop(FIELDS, {})
        return log_data | fields


class DroppingHandler(QueueHandler):
    """Queues formatted lines for a thread that writes them to `stream`.

    Lines are formatted where they are logged: a traceback may be cleared soon after.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_QUEUED)
        super().__init__(self._lines)
        self.dropped = 0
        """Lines that the queue had no room for, since the start."""
        self._writer = _LineWriter(self._lines, stream, self)
        self._writer.start()

    def prepare(self, record: logging.LogRecord) -> str:
        """Part of QueueHandler: the line alone, a quarter of its record's size."""
        return self.format(record)

    def enqueue(self, record: Any) -> None:
        """Part of QueueHandler: queue what `prepare` returned."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Wait until the queued lines are written, FLUSH_SECONDS at most."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, FLUSH_SECONDS)

    def close(self) -> None:
        """End the thread once the queued lines are written, without waiting for it."""
        with suppress(queue.Full):
            self._writer.enqueue_sentinel()
        super().close()


class _LineWriter(QueueListener):
    """Writes each queued line to `stream`, and before it the number of lines dropped since the last one."""

    def __init__(self, lines: "queue.Queue[str | None]", stream: TextIO, source: DroppingHandler) -> None:
        super().__init__(lines)
        self._stream = stream
        self._source = source
        self._reported = 0

    def handle(self, record: Any) -> None:
        """Part of QueueListener: write one line."""
        dropped = self._source.dropped - self._reported
        self._reported += dropped
        # Where the reader is gone, nothing is left to report it to.
        with suppress(OSError, ValueError):
            if dropped:
                print(self._source.format(_dropped_record(dropped)), file=self._stream)
            print(record, file=self._stream, flush=True)


def _dropped_record(lines: int) -> logging.LogRecord:
    message = f"{lines} log lines were dropped: the reader did not keep up"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, FIELDS, {})
    return fields


def _plain(value: object) -> str:
    """A value on one line of ASCII, quoted where it could be taken for something else."""
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) and value.isascii() and value.isalnum() else json.dumps(value)
