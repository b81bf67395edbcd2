"""A model that does not answer: callers are told, the server says so, and serves again when it answers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dragoman.client import AsyncClient, UnavailableError
from dragoman.service.loading.watchdog import LOOK_SECONDS
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import Running, eventually, fetch, health, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HANGING = "^the model does not answer; serving resumes when it does$"


class Clock:
    """The real one, until somebody puts it forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@asynccontextmanager
async def hanging(method: str, clock: Clock, settings: ServerSettings) -> AsyncIterator[tuple[Running, AsyncClient]]:
    """A server whose model has one call before it, and has been at it for just as long as it may."""
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
async def test_nobody_waits_for_a_model_that_hangs_and_the_server_serves_again_when_it_goes_on(method: str) -> None:
    async with hanging(method, Clock(), ServerSettings()) as (running, client):
        async with grpc.aio.insecure_channel(running.address) as channel:
            watch = health(channel).Watch(health_pb2.HealthCheckRequest(service=""))
            while (await watch.read()).status != NOT_SERVING:
                pass
            assert await pages(running) == [503, 503]
            assert not healthy(running)
            asked = time.monotonic()
            with pytest.raises(UnavailableError, match=HANGING):
                await client.translate(["bird"])
            assert time.monotonic() - asked < 5
            running.runner.gate.set()
            assert (await watch.read()).status == SERVING
            watch.cancel()
        assert await pages(running) == [200, 200]
        assert (await client.translate(["bird"])).texts == ("bird",)
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        assert running.value("dragoman_refused_total", reason="draining") == 1, (
            "the call that was begun was not refused"
        )


async def test_a_model_that_only_waits_for_work_does_not_hang() -> None:
    clock = Clock()
    async with serving(clock=clock) as running, running.client() as client:
        await client.translate(["kite"])
        clock.ahead += 1000
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert healthy(running)
        assert (await client.translate(["kite"])).texts == ("kite",)


async def test_without_a_limit_a_model_may_take_as_long_as_it_likes() -> None:
    runner, clock = FakeRunner(), Clock()
    settings = ServerSettings(run_timeout_seconds=0)
    async with serving(runner, settings=settings, clock=clock) as running, running.client() as client:
        runner.gate.clear()
        call = asyncio.create_task(client.embed(["kite"]))
        await eventually(runner.stepping.is_set)
        clock.ahead += 10_000
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert healthy(running)
        call.cancel()


@pytest.mark.parametrize("first", ["hang", "stop"])
async def test_stopping_does_not_wait_for_a_model_that_hangs(first: str) -> None:
    clock = Clock()
    settings = ServerSettings(run_timeout_seconds=1000)
    runner = FakeRunner()
    async with serving(runner, settings=settings, clock=clock) as running, running.client() as client:
        runner.gate.clear()
        call = asyncio.create_task(client.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        began = time.monotonic()
        if first == "hang":
            clock.ahead += 2000
            await eventually(lambda: not healthy(running))
            await running.server.stop(30)
        else:
            stopping = asyncio.create_task(running.server.stop(30))
            await asyncio.sleep(0)
            clock.ahead += 2000
            await stopping
        assert time.monotonic() - began < 15
        with pytest.raises(UnavailableError):
            await call
        runner.gate.set()
