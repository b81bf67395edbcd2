"""What is told of a call in its spans, and what never is."""

from collections.abc import Mapping

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from dragoman.service.telemetry.call_log import Call
from dragoman.service.telemetry.call_spans import CallSpans
from dragoman.v1 import translation_pb2 as pb

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
METHOD = "dragoman.v1.TranslationService/Translate"

REQUEST = pb.TranslateRequest(texts=["zebra", "kite"], request_id="7")
TIMINGS = pb.Timings(tokenize_seconds=0.5, queue_seconds=0.25, encode_seconds=1, decode_seconds=2)
RESPONSE = pb.TranslateResponse(
    translations=[pb.Translation(text="zèbre", source_tokens=3, output_tokens=4)], model="fake", timings=TIMINGS
)


class Traced:
    """Spans that are kept here."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.kept = InMemorySpanExporter()
        provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)))
        provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.spans = CallSpans(provider)

    def note(
        self,
        code: grpc.StatusCode = grpc.StatusCode.OK,
        context: Mapping[str, str] = SAMPLED,
        seconds: float = 4.0,
        response: pb.TranslateResponse | None = RESPONSE,
    ) -> dict[str, ReadableSpan]:
        """Trace one call, and give its spans by their names."""
        self.kept.clear()
        self.spans.note(Call("Translate", code, seconds, context, REQUEST, response))
        return {span.name: span for span in self.kept.get_finished_spans()}


def seconds(span: ReadableSpan, since: ReadableSpan) -> tuple[float, float]:
    """When a span began and ended, from the beginning of another."""
    assert span.start_time is not None
    assert span.end_time is not None
    assert since.start_time is not None
    return (span.start_time - since.start_time) / 1e9, (span.end_time - since.start_time) / 1e9


def test_a_call_is_a_span_within_the_caller_s_trace() -> None:
    span = Traced().note()[METHOD]
    assert span.kind is SpanKind.SERVER
    assert span.context is not None
    assert format_trace_id(span.context.trace_id) == TRACE
    assert span.parent is not None
    assert format_span_id(span.parent.span_id) == PARENT
    assert span.status.status_code is StatusCode.UNSET
    assert seconds(span, span) == (0, 4)


def test_it_tells_names_counts_and_the_code_and_nothing_else() -> None:
    assert Traced().note()[METHOD].attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
        "dragoman.model": "fake",
        "dragoman.texts": 2,
        "dragoman.source_tokens": 3,
        "dragoman.output_tokens": 4,
    }


def test_its_phases_are_spans_within_it_one_after_another() -> None:
    found = Traced().note()
    whole = found.pop(METHOD)
    assert {name: seconds(span, whole) for name, span in found.items()} == {
        "tokenize": (0, 0.5),
        "queue": (0.5, 0.75),
        "encode": (0.75, 1.75),
        "decode": (1.75, 3.75),
    }
    assert [span.parent for span in found.values()] == [whole.context] * 4
    assert [dict(span.attributes or {}) for span in found.values()] == [{}] * 4


def test_no_phase_goes_beyond_its_call() -> None:
    found = Traced().note(seconds=1.0)
    whole = found.pop(METHOD)
    assert max(seconds(span, whole)[1] for span in found.values()) == 1.0
    assert all(begun <= ended for begun, ended in (seconds(span, whole) for span in found.values()))


def test_a_call_without_an_answer_has_no_phases() -> None:
    assert list(Traced().note(grpc.StatusCode.DEADLINE_EXCEEDED, response=None)) == [METHOD]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.UNAVAILABLE, True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, True),
        (grpc.StatusCode.INVALID_ARGUMENT, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False),
        (grpc.StatusCode.CANCELLED, False),
    ],
)
def test_a_fault_of_the_server_is_an_error_and_one_of_the_caller_s_is_not(code: grpc.StatusCode, fault: bool) -> None:
    span = Traced().note(code, response=None)[METHOD]
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == code.name
    assert span.attributes.get("error.type") == (code.name if fault else None)
    assert span.status.status_code is (StatusCode.ERROR if fault else StatusCode.UNSET)
    assert not span.status.description


@pytest.mark.parametrize("context", [{}, {"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}])
def test_a_call_of_no_trace_begins_one(context: Mapping[str, str]) -> None:
    span = Traced().note(context=context)[METHOD]
    assert span.parent is None


def test_callers_decide_and_of_the_others_a_part_is_traced() -> None:
    traced = Traced(ratio=0.0)
    assert traced.note(context=SAMPLED)
    assert not traced.note(context={})
    traced = Traced(ratio=1.0)
    assert not traced.note(context=NOT_SAMPLED)
    assert traced.note(context={})


def test_what_goes_wrong_with_a_trace_is_no_matter_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    traced = Traced()
    traced.note(seconds=float("nan"))
    assert "a call could not be traced" in caplog.text
