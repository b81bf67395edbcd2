"""Traces of a real server, as received by a collector."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from dragoman.client import AsyncClient, Client, ClientError
from dragoman.service.errors import StartupError
from dragoman.service.settings import ServerSettings
from dragoman.service.telemetry import traces
from dragoman.service.telemetry.traces import INSTALL_TRACES, NoTraces, open_traces
from tests.support.harness import PATIENCE_SECONDS, Running, free_port, serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TOKEN = "a-token-of-the-tests"
METHOD = "dragoman.v1.TranslationService/Translate"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every request."""

    def __init__(self) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[trace_pb2.Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[tuple[Collector, ServerSettings]]:
    """A collector, and the settings of a server that sends to it."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, tracing(port)
    finally:
        server.stop(None).wait()


def tracing(port: int) -> ServerSettings:
    return ServerSettings(repetition_tokens=0, traces_endpoint=f"http://127.0.0.1:{port}")


def traced(running: Running) -> AsyncClient:
    return AsyncClient(
        running.address,
        timeout_seconds=PATIENCE_SECONDS,
        token=TOKEN,
        trace=lambda: {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"},
    )


async def test_a_call_and_its_phases_join_the_caller_s_trace() -> None:
    with collecting() as (collector, settings):
        async with serving(settings=settings, grace_seconds=PATIENCE_SECONDS) as running, traced(running) as client:
            await client.translate(["red kite", "green kite"])
            with pytest.raises(ClientError):
                await client.translate(["kite"], to="xx")
        # The stop has sent all spans.
        whole = [span for span in collector.spans if span.name == METHOD]
        assert len(whole) == 2
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        assert {span.parent_span_id.hex() for span in whole} == {PARENT}
        assert {span.trace_state for span in whole} == {"a=b"}
        codes = [
            each.value.string_value
            for span in whole
            for each in span.attributes
            if each.key == "rpc.response.status_code"
        ]
        assert codes == ["OK", "INVALID_ARGUMENT"]
        phases = [span for span in collector.spans if span.name != METHOD]
        assert {span.name for span in phases} == {"tokenize", "queue", "encode", "decode"}
        assert {span.parent_span_id for span in phases} == {whole[0].span_id}
        for span in phases:
            assert whole[0].start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= whole[0].end_time_unix_nano
        resource = collector.requests[0].resource_spans[0].resource
        assert ("service.name", "dragoman") in [(each.key, each.value.string_value) for each in resource.attributes]


async def test_no_text_token_or_address_of_a_caller_is_sent() -> None:
    with collecting() as (collector, settings):
        async with serving(settings=settings, grace_seconds=PATIENCE_SECONDS) as running, traced(running) as client:
            await client.translate(["red kite"], request_id="mine-and-only-mine")
            with pytest.raises(ClientError):
                await client.translate(["red kite"], to="kite-language", model="kite-model")
        assert collector.spans
        sent = b"".join(request.SerializeToString() for request in collector.requests)
        for secret in (b"kite", TOKEN.encode(), b"mine-and-only-mine", b"127.0.0.1", str(running.server.port).encode()):
            assert secret not in sent


async def test_without_a_caller_s_trace_the_ratio_decides() -> None:
    with collecting() as (collector, settings):
        settings = settings.model_copy(update={"traces_ratio": 0.0})
        async with serving(settings=settings, grace_seconds=PATIENCE_SECONDS) as running, running.client() as client:
            await client.translate(["red kite"])
        assert collector.spans == []


async def test_an_absent_collector_delays_neither_calls_nor_the_stop() -> None:
    async with serving(settings=tracing(free_port())) as running:
        async with running.client() as client:
            results = await asyncio.gather(*(client.translate(["red kite"]) for _ in range(50)))
        assert {result.texts for result in results} == {("red kite",)}
        began = time.monotonic()
        await running.server.stop(0.2)
        assert time.monotonic() - began < PATIENCE_SECONDS


def test_the_blocking_client_sends_its_trace() -> None:
    async def serve() -> None:
        with collecting() as (collector, settings):
            async with serving(settings=settings, grace_seconds=PATIENCE_SECONDS) as running:
                context = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
                await asyncio.to_thread(ask, running.address, context)
            assert {span.trace_id.hex() for span in collector.spans} == {TRACE}

    def ask(address: str, context: dict[str, str]) -> None:
        with Client(address, timeout_seconds=PATIENCE_SECONDS, trace=lambda: context) as client:
            client.translate(["red kite"])

    asyncio.run(serve())


def test_there_are_no_traces_unless_an_endpoint_is_set() -> None:
    assert isinstance(open_traces(ServerSettings()), NoTraces)


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith(("opentelemetry", "dragoman.service.telemetry.call_spans")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("dragoman.service.telemetry.call_spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(StartupError) as caught:
        open_traces(ServerSettings(traces_endpoint="http://127.0.0.1:1"))
    assert str(caught.value).endswith(f"is missing: {INSTALL_TRACES}")


def test_a_server_without_traces_loads_no_opentelemetry() -> None:
    code = f"import sys, dragoman.service.server, {traces.__name__}; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_SECONDS).returncode == 0
