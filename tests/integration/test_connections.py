"""Limits of a connection: metadata, age, idle time, concurrent calls and pings."""

import asyncio
import time

import grpc
import pytest

from dragoman.service.rpc import transport
from dragoman.service.settings import ServerSettings
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from tests.integration.test_metrics import started
from tests.support.fake_runner import FakeRunner
from tests.support.harness import eventually, serving


@pytest.mark.parametrize("size", [5000, 20_000])
async def test_metadata_is_refused_exactly_beyond_the_bound(size: int) -> None:
    settings = ServerSettings(max_metadata_bytes=8192)
    async with serving(settings=settings) as running, grpc.aio.insecure_channel(running.address) as channel:
        method = rpc.TranslationServiceStub(channel).GetInfo
        calls = [method(pb.GetInfoRequest(), metadata=(("x", "y" * size),)) for _ in range(20)]
        codes = {await call.code() for call in calls}
        await method(pb.GetInfoRequest())
    assert codes == {grpc.StatusCode.OK if size < 8192 else grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_calls_survive_the_age_and_idle_limits() -> None:
    settings = ServerSettings(repetition_tokens=0, connection_age_seconds=1, connection_idle_seconds=1)
    async with serving(settings=settings) as running, running.client() as client:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert (await client.translate(["kite"])).texts == ("kite",)
        await asyncio.sleep(1.5)
        assert (await client.translate(["kite"])).texts == ("kite",)


async def test_excess_calls_of_one_connection_wait_at_the_caller() -> None:
    runner, settings = FakeRunner(), ServerSettings(connection_calls=1)
    async with serving(runner, settings=settings) as running, running.client() as client:
        runner.gate.clear()
        calls = [asyncio.create_task(client.translate([text])) for text in ("kite", "boat")]
        await eventually(runner.stepping.is_set)
        await asyncio.sleep(0.3)
        assert started(running, "Translate") == 1
        runner.gate.set()
        assert [(await call).texts for call in calls] == [("kite",), ("boat",)]


@pytest.mark.parametrize(("min_seconds", "stays_open"), [(1, True), (3, False)])
async def test_pings_faster_than_the_minimum_close_the_connection(
    min_seconds: int, stays_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MIN_PING_SECONDS", min_seconds)
    options = [
        ("grpc.keepalive_time_ms", 1500),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with serving() as running, grpc.aio.insecure_channel(running.address, options=options) as channel:
        await channel.channel_ready()
        changed = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        done, _ = await asyncio.wait({changed}, timeout=7)
        assert bool(done) is not stays_open
        changed.cancel()
