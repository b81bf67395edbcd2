import io
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dragoman.service.telemetry.call_log import FIELDS
from dragoman.service.telemetry.logs import ConsoleFormatter, DroppingHandler, JsonFormatter

FIELDS_OF_A_CALL = {"method": "Translate", "code": "OK", "seconds": 0.5, "id": 'a b\n"c', "texts": 2, "model": "fake"}


def record(message: str = "Translate OK", fields: dict[str, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("dragoman.calls", logging.INFO, "", 0, message, (), None)
    if fields is not None:
        setattr(made, FIELDS, fields)
    return made


def test_a_console_line_leaves_out_fields_of_its_message() -> None:
    line = ConsoleFormatter().format(record(fields=FIELDS_OF_A_CALL))
    assert line.endswith(r' INFO dragoman.calls: Translate OK seconds=0.5 id="a b\n\"c" texts=2 model=fake')


def test_a_json_line_is_one_object_of_these_keys_in_order() -> None:
    made = record(fields=FIELDS_OF_A_CALL)
    made.created, made.msecs = 1_700_000_000.0426, 42.6
    line = JsonFormatter().format(made)
    assert len(line.splitlines()) == 1
    assert list(json.loads(line).items()) == [
        ("time", "2023-11-14T22:13:20.042Z"),
        ("level", "INFO"),
        ("logger", "dragoman.calls"),
        ("message", "Translate OK"),
        *FIELDS_OF_A_CALL.items(),
    ]


def test_a_json_line_is_ascii() -> None:
    assert JsonFormatter().format(record(fields={"sources": ["zèbre"]})).isascii()


def test_an_exception_is_a_field_of_json() -> None:
    made = record("a call failed")
    try:
        raise KeyError("kite")
    except KeyError:
        made.exc_info = sys.exc_info()
    found = json.loads(JsonFormatter().format(made))
    assert found["message"] == "a call failed"
    assert "KeyError: 'kite'" in found["exception"]


class Stuck(io.StringIO):
    """A pipe without a reader, until `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.free.wait()
        return super().write(text)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stream = Stuck()
    yield stream
    stream.free.set()


def test_logged_lines_are_written_once_flushed() -> None:
    stream = io.StringIO()
    handler = DroppingHandler(stream)
    for number in range(3):
        handler.handle(record(f"{number} %"))
    handler.flush()
    assert stream.getvalue() == "0 %\n1 %\n2 %\n"
    handler.close()


def test_a_traceback_is_written_though_it_was_cleared_since(stuck: Stuck) -> None:
    handler = DroppingHandler(stuck)
    handler.setFormatter(JsonFormatter())
    made = record("a call failed")
    try:
        raise KeyError("kite")
    except KeyError as error:
        made.exc_info = sys.exc_info()
        handler.handle(made)
        error.__traceback__ = None
    stuck.free.set()
    handler.flush()
    assert "Traceback" in json.loads(stuck.getvalue())["exception"]
    handler.close()


@pytest.mark.parametrize("form", ["console", "json"])
def test_lines_beyond_the_queue_are_dropped_and_counted(
    stuck: Stuck, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.service.telemetry.logs.MAX_QUEUED", 2)
    handler = DroppingHandler(stuck)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter('{"message": "%(message)s"}'))
    handler.handle(record("first"))
    stuck.reached.wait()
    for number in range(5):
        handler.handle(record(str(number)))
    stuck.free.set()
    handler.flush()
    messages = [json.loads(line)["message"] for line in stuck.getvalue().splitlines()]
    assert messages == ["first", "3 log lines were dropped: the reader did not keep up", "0", "1"]
    handler.close()


def test_neither_flush_nor_close_waits_long_for_a_stuck_reader(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.service.telemetry.logs.FLUSH_SECONDS", 0.1)
    handler = DroppingHandler(stuck)
    handler.handle(record())
    stuck.reached.wait()
    began = time.monotonic()
    handler.flush()
    handler.close()
    assert 0.1 <= time.monotonic() - began < 10


def test_a_reader_that_is_gone_ends_no_line_after_it() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            if text.startswith("lost"):
                raise BrokenPipeError
            return super().write(text)

    stream = Broken()
    handler = DroppingHandler(stream)
    for message in ("lost", "kept"):
        handler.handle(record(message))
    handler.flush()
    assert stream.getvalue() == "kept\n"
    handler.close()


def test_the_thread_ends_with_its_handler() -> None:
    before = threading.active_count()
    handler = DroppingHandler(io.StringIO())
    handler.close()
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before
