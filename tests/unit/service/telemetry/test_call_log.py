import logging
from typing import Any

import grpc
import pytest

from dragoman.service.telemetry.call_log import Call, CallLog, trace_context, trace_of
from dragoman.v1 import translation_pb2 as pb

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
OK, INTERNAL = grpc.StatusCode.OK, grpc.StatusCode.INTERNAL

REQUEST = pb.TranslateRequest(texts=["zebra", "kite"], request_id="7")
RESPONSE = pb.TranslateResponse(
    translations=[
        pb.Translation(text="zèbre", source_tokens=3, output_tokens=4, source_truncated=True),
        pb.Translation(text="milan", source_tokens=5, output_tokens=6),
    ],
    model="fake",
    timings=pb.Timings(queue_seconds=0.25, tokenize_seconds=0.5, encode_seconds=1, decode_seconds=2),
)
ANSWERED = Call("Translate", OK, 3.75, CONTEXT, REQUEST, RESPONSE)
FAILED = Call("Embed", INTERNAL, 0.5, {}, pb.EmbedRequest(texts=["zebra"]))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records]


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_has_names_counts_and_times_but_no_text(caplog: pytest.LogCaptureFixture) -> None:
    CallLog(10).note(ANSWERED)
    assert lines(caplog) == [
        {
            "method": "Translate",
            "code": "OK",
            "seconds": 3.75,
            "trace": TRACE,
            "id": "7",
            "texts": 2,
            "source_tokens": 8,
            "truncated": 1,
            "output_tokens": 10,
            "model": "fake",
            "queue_seconds": 0.25,
            "tokenize_seconds": 0.5,
            "encode_seconds": 1.0,
            "decode_seconds": 2.0,
        }
    ]


def test_texts_are_logged_only_on_request(caplog: pytest.LogCaptureFixture) -> None:
    CallLog(10, with_texts=True).note(ANSWERED)
    (line,) = lines(caplog)
    assert line["sources"] == ["zebra", "kite"]
    assert line["translations"] == ["zèbre", "milan"]


def test_a_call_whose_message_was_not_read_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    CallLog(10).note(Call("Embed", grpc.StatusCode.UNAUTHENTICATED, 0.0, {}))
    assert lines(caplog) == [{"method": "Embed", "code": "UNAUTHENTICATED", "seconds": 0.0}]


def test_under_load_lines_are_left_out_except_of_failures(caplog: pytest.LogCaptureFixture) -> None:
    now = 5.5
    log = CallLog(2, clock=lambda: now)
    for _ in range(7):
        log.note(ANSWERED)
    log.note(FAILED)
    now = 6.0
    log.note(ANSWERED)
    assert [(line["code"], line.get("left_out", 0)) for line in lines(caplog)] == [
        ("OK", 0),
        ("OK", 0),
        ("INTERNAL", 0),
        ("OK", 5),
    ]


def test_a_limit_of_0_writes_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    CallLog(0).note(ANSWERED)
    assert not caplog.records


@pytest.mark.parametrize(
    ("value", "trace"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-00f067aa0ba902b7-01\nINFO", None),
        (TRACE, None),
        (b"", None),
    ],
)
def test_a_malformed_trace_is_ignored(value: str | bytes, trace: str | None) -> None:
    assert trace_of(trace_context([("a", "b"), ("traceparent", value)])) == trace
