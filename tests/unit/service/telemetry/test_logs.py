import io
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dragoman.service.telemetry.call_log import FIELDS
from dragoman.service.telemetry.logs import ConsoleFormatter, JsonFormatter, QuietHandler
from tests.support.harness import PATIENCE_SECONDS

FIELDS_OF_A_CALL = {"method": "Translate", "code": "OK", "seconds": 0.5, "id": 'a b\n"c', "texts": 2, "model": "fake"}


def record(message: str = "Translate OK", fields: dict[str, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("dragoman.calls", logging.INFO, "", 0, message, (), None)
    if fields is not None:
        setattr(made, FIELDS, fields)
    return made


def test_a_line_for_people_names_what_the_message_does_not_say() -> None:
    line = ConsoleFormatter().format(record(fields=FIELDS_OF_A_CALL))
    assert line.endswith(r' INFO dragoman.calls: Translate OK seconds=0.5 id="a b\n\"c" texts=2 model=fake')


def test_a_line_of_json_holds_every_field_and_is_one_line() -> None:
    line = JsonFormatter().format(record(fields=FIELDS_OF_A_CALL))
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert found.items() >= FIELDS_OF_A_CALL.items()
    assert found["level"] == "INFO"
    assert found["time"].endswith("Z")


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
    """A pipe that nobody reads, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.free.wait(PATIENCE_SECONDS)
        return super().write(text)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stream = Stuck()
    yield stream
    stream.free.set()


def test_what_was_logged_is_written_once_it_is_flushed() -> None:
    stream = io.StringIO()
    handler = QuietHandler(stream)
    for number in range(3):
        handler.handle(record(str(number)))
    handler.flush()
    assert stream.getvalue() == "0\n1\n2\n"
    handler.close()


def test_a_reader_that_does_not_read_stops_nobody_and_is_told_what_it_lost(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.service.telemetry.logs.MAX_WAITING", 2)
    handler = QuietHandler(stuck)
    handler.handle(record("first"))
    assert stuck.reached.wait(PATIENCE_SECONDS)
    for number in range(5):
        handler.handle(record(str(number)))
    stuck.free.set()
    end = time.monotonic() + PATIENCE_SECONDS
    while not stuck.getvalue().endswith("0\n1\n") and time.monotonic() < end:
        time.sleep(0.01)
    assert stuck.getvalue().splitlines()[:3] == ["first", "3 lines of the log were dropped: nobody read them", "0"]
    handler.close()
