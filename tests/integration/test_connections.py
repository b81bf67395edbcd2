"""What a connection may do, and for how long it lives."""

import asyncio
import time

import grpc
import pytest

from dragoman.service.settings import ServerSettings
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from tests.harness import serving


@pytest.mark.parametrize("size", [5000, 20_000])
async def test_metadata_beyond_the_bound_is_refused_each_time_and_below_it_never(size: int) -> None:
    settings = ServerSettings(max_metadata_bytes=8192)
    async with serving(settings=settings) as running, grpc.aio.insecure_channel(running.address) as channel:
        method = rpc.TranslationServiceStub(channel).GetInfo
        calls = [method(pb.GetInfoRequest(), metadata=(("x", "y" * size),)) for _ in range(20)]
        codes = {await call.code() for call in calls}
        await method(pb.GetInfoRequest())
    assert codes == {grpc.StatusCode.OK if size < 8192 else grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_calls_go_on_when_their_connection_has_reached_its_age_or_was_idle() -> None:
    settings = ServerSettings(repetition_tokens=0, connection_age_seconds=1, connection_idle_seconds=1)
    async with serving(settings=settings) as running, running.client() as client:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert (await client.translate(["kite"])).texts == ("kite",)
        await asyncio.sleep(1.5)
        assert (await client.translate(["kite"])).texts == ("kite",)
