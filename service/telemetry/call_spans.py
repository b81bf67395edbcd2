"""Spans of calls, by OpenTelemetry's semantic conventions for gRPC.

Spans are made after a call has ended: one for the call, and a child for each of its phases. Nothing is traced while the
call runs, so that tracing costs it only that moment.
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
"""Phases in the order of their time."""

LOGGED_ATTRIBUTES = ("model", "texts", "source_tokens", "output_tokens")
"""Fields of a call's log line that are attributes of its span too."""

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
"""Codes that the conventions count as errors of the server; all others are errors of the caller."""

MAX_QUEUED = 4096
"""Spans queued for sending; beyond it the oldest are dropped."""

SEND_SECONDS = 5
"""Maximum time for sending one batch, retries included."""

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
            log.exception("could not trace a call")

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
        span.set_attributes({f"dragoman.{name}": fields[name] for name in LOGGED_ATTRIBUTES if name in fields})
        inside = trace.set_span_in_context(span, Context())
        for phase, begun, ended in _phases(call.response, start, end):
            self._tracer.start_span(phase, inside, start_time=begun).end(ended)
        span.end(end)


def otlp_provider(endpoint: str, ratio: float) -> TracerProvider:
    """A provider that sends spans to `endpoint` by OTLP over gRPC, in the background.

    A caller's trace is sampled if the caller samples it; of calls without a trace the share `ratio` is sampled.
    """
    resource = Resource.create({SERVICE_NAME: "dragoman", SERVICE_VERSION: own_version()})
    # At exit it would wait for a collector that does not answer; the server instead closes it within its grace.
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, timeout=SEND_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED))
    return provider


def _phases(response: Any, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Each phase that took time, with its start and end in nanoseconds.

    A response has the slowest time of its texts, phase by phase. Laid one after another, phases may go beyond the
    call's `end`, and are then cut.
    """
    if not isinstance(response, pb.TranslateResponse | pb.EmbedResponse):
        return
    for phase in PHASES:
        seconds: float = getattr(response.timings, f"{phase}_seconds")
        stop = min(end, start + round(seconds * NANOSECONDS))
        if seconds:
            yield phase, start, stop
        start = stop
