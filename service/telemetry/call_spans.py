"""Spans of calls, in the words of OpenTelemetry's conventions for gRPC.

A call has ended when its spans are made: one for the call, and one within it for each of its phases. Nothing is traced
while it runs, so that what is traced costs a call nothing but that moment.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dragoman.service.system.process import own_version
from dragoman.service.telemetry.call_log import Call, call_fields
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.names import SERVICE

log = logging.getLogger(__name__)

PHASES = ("tokenize", "queue", "encode", "decode")
"""In their order."""

TOLD = ("model", "texts", "source_tokens", "output_tokens")
"""Fields of a call that stand in its span, as they do in the log."""

SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Codes that are errors of the server by the conventions; others are the callers' matter."""

MAX_WAITING = 4096
"""Spans that wait to be sent; those beyond are dropped, the oldest first."""

SEND_SECONDS = 5
"""How long one batch may be tried to be sent."""

NANOSECONDS = 1_000_000_000


class CallSpans:
    """See `Traces`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("dragoman", own_version())
        self._parents = TraceContextTextMapPropagator()

    def note(self, call: Call) -> None:
        """See `Traces`."""
        end = time.time_ns()
        try:
            self._trace(call, end - round(call.seconds * NANOSECONDS), end)
        except Exception:
            log.exception("a call could not be traced")

    def close(self) -> None:
        """See `Traces`."""
        self._provider.shutdown()

    def _trace(self, call: Call, start: int, end: int) -> None:
        method = f"{SERVICE}/{call.method}"
        parent = self._parents.extract(call.trace_context, Context())
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, start_time=start)
        if not span.is_recording():
            return
        code = call.code.name
        span.set_attributes({"rpc.system.name": "grpc", "rpc.method": method, "rpc.response.status_code": code})
        if call.code in SERVER_FAULTS:
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR))
        fields = call_fields(call)
        span.set_attributes({f"dragoman.{name}": fields[name] for name in TOLD if name in fields})
        within = trace.set_span_in_context(span, Context())
        for phase, begun, ended in _phases(call.response, start, end):
            self._tracer.start_span(phase, within, start_time=begun).end(ended)
        span.end(end)


def otlp_provider(endpoint: str, ratio: float) -> TracerProvider:
    """What sends spans to `endpoint` by OTLP over gRPC, in the background.

    Callers say whether their traces are sampled; of others the part `ratio` is.
    """
    resource = Resource.create({SERVICE_NAME: "dragoman", SERVICE_VERSION: own_version()})
    # At exit it would wait for a collector that does not answer; the server closes it within its grace.
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, timeout=SEND_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING))
    return provider


def _phases(response: Any, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Each phase that took time, with its beginning and end in nanoseconds.

    Of several texts a response has the slowest, phase by phase: laid one after another, they may go beyond the end,
    and are then cut.
    """
    if not isinstance(response, pb.TranslateResponse | pb.EmbedResponse):
        return
    for phase in PHASES:
        seconds: float = getattr(response.timings, f"{phase}_seconds")
        stop = min(end, start + round(seconds * NANOSECONDS))
        if seconds:
            yield phase, start, stop
        start = stop
