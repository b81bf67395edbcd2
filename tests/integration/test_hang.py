"""A model that hangs: its calls fail, the server reports it, and serves again once the model goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dragoman.client import AsyncClient, UnavailableError
from dragoman.service.loading.watchdog import CHECK_SECONDS
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import PATIENCE_SECONDS, Clock, Running, eventually, fetch, health, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HANGING = "^the model does not answer; serving resumes when it does$"


@asynccontextmanager
async def hanging(method: str, clock: Clock, settings: ServerSettings) -> AsyncIterator[tuple[Running, AsyncClient]]:
    """A server whose model is in its first call, and has just exceeded the time limit of a run."""
    runner = FakeRunner()
    async with serving(runner, settings=settings, clock=clock) as running, running.client() as client:
        runner.gate.clear()
        call = asyncio.create_task(getattr(client, method)(["kite", "red boat"]))
        await eventually(runner.stepping.is_set)
        clock.ahead += settings.run_timeout_seconds + 1
        yield running, client
        with pytest.raises(UnavailableError, match=HANGING):
            await call


def healthy(running: Running) -> bool:
    return running.value("dragoman_ready", model="fake") == 1


async def pages(running: Running) -> list[int]:
    return [(await fetch(running.server, page))[0] for page in ("/readyz", "/healthz")]


@pytest.mark.parametrize("method", ["translate", "embed"])
async def test_calls_to_a_hanging_model_fail_until_it_goes_on(method: str) -> None:
    async with hanging(method, Clock(), ServerSettings()) as (running, client):
        async with grpc.aio.insecure_channel(running.address) as channel:
            watch = health(channel).Watch(health_pb2.HealthCheckRequest(service=""))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await watch.read()).status != NOT_SERVING:
                    pass
            assert await pages(running) == [503, 503]
            assert not healthy(running)
            with pytest.raises(UnavailableError, match=HANGING):
                await client.translate(["bird"])
            running.runner.gate.set()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await watch.read()).status == SERVING
            watch.cancel()
        assert await pages(running) == [200, 200]
        assert (await client.translate(["bird"])).texts == ("bird",)
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        assert running.value("dragoman_refused_total", reason="draining") == 1, "only the second call was refused"


async def test_an_idle_model_does_not_hang() -> None:
    clock = Clock()
    async with serving(clock=clock) as running, running.client() as client:
        await client.translate(["kite"])
        clock.ahead += 1000
        await asyncio.sleep(2 * CHECK_SECONDS)
        assert healthy(running)
        assert (await client.translate(["kite"])).texts == ("kite",)


async def test_without_a_time_limit_no_model_hangs() -> None:
    runner, clock = FakeRunner(), Clock()
    settings = ServerSettings(run_timeout_seconds=0)
    async with serving(runner, settings=settings, clock=clock) as running, running.client() as client:
        runner.gate.clear()
        call = asyncio.create_task(client.embed(["kite"]))
        await eventually(runner.stepping.is_set)
        clock.ahead += 10_000
        await asyncio.sleep(2 * CHECK_SECONDS)
        assert healthy(running)
        call.cancel()


@pytest.mark.parametrize("first", ["hang", "stop"])
async def test_a_stop_does_not_wait_for_a_hanging_model(first: str) -> None:
    clock = Clock()
    settings = ServerSettings(run_timeout_seconds=1000)
    runner = FakeRunner()
    async with serving(runner, settings=settings, clock=clock) as running, running.client() as client:
        runner.gate.clear()
        call = asyncio.create_task(client.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        async with asyncio.timeout(PATIENCE_SECONDS):
            if first == "hang":
                clock.ahead += 2000
                await eventually(lambda: not healthy(running))
                await running.server.stop(10 * PATIENCE_SECONDS)
            else:
                stopping = asyncio.create_task(running.server.stop(10 * PATIENCE_SECONDS))
                await asyncio.sleep(0)
                clock.ahead += 2000
                await stopping
        with pytest.raises(UnavailableError):
            await call
        runner.gate.set()
