"""The spans of a call: their attributes, times and parents, and the absence of texts."""

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
    """Spans kept in memory."""

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
        """Trace one call; returns its spans by name."""
        self.kept.clear()
        self.spans.note(Call("Translate", code, seconds, context, REQUEST, response))
        return {span.name: span for span in self.kept.get_finished_spans()}


def seconds(span: ReadableSpan, since: ReadableSpan) -> tuple[float, float]:
    """Start and end of `span`, in seconds from the start of `since`."""
    assert span.start_time is not None
    assert span.end_time is not None
    assert since.start_time is not None
    return (span.start_time - since.start_time) / 1e9, (span.end_time - since.start_time) / 1e9


def test_a_call_is_a_span_in_the_caller_s_trace() -> None:
    span = Traced().note()[METHOD]
    assert span.kind is SpanKind.SERVER
    assert span.context is not None
    assert format_trace_id(span.context.trace_id) == TRACE
    assert span.parent is not None
    assert format_span_id(span.parent.span_id) == PARENT
    assert span.status.status_code is StatusCode.UNSET
    assert seconds(span, span) == (0, 4)


def test_attributes_are_names_counts_and_the_code_alone() -> None:
    assert Traced().note()[METHOD].attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
        "dragoman.model": "fake",
        "dragoman.texts": 2,
        "dragoman.source_tokens": 3,
        "dragoman.output_tokens": 4,
    }


def test_phases_are_child_spans_one_after_another() -> None:
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


def test_no_phase_ends_after_its_call() -> None:
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
def test_only_faults_of_the_server_are_errors(code: grpc.StatusCode, fault: bool) -> None:
    span = Traced().note(code, response=None)[METHOD]
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == code.name
    assert span.attributes.get("error.type") == (code.name if fault else None)
    assert span.status.status_code is (StatusCode.ERROR if fault else StatusCode.UNSET)
    assert not span.status.description


@pytest.mark.parametrize("context", [{}, {"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}])
def test_a_call_without_a_trace_starts_one(context: Mapping[str, str]) -> None:
    span = Traced().note(context=context)[METHOD]
    assert span.parent is None


def test_callers_decide_on_sampling_and_the_ratio_else() -> None:
    traced = Traced(ratio=0.0)
    assert traced.note(context=SAMPLED)
    assert not traced.note(context={})
    traced = Traced(ratio=1.0)
    assert not traced.note(context=NOT_SAMPLED)
    assert traced.note(context={})


def test_a_failing_trace_does_not_fail_the_call(caplog: pytest.LogCaptureFixture) -> None:
    traced = Traced()
    traced.note(seconds=float("nan"))
    assert "could not trace a call" in caplog.text
