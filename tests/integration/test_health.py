"""Health by grpc.health.v1: statuses change at the right moment, and are answered while the engine is busy."""

import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dragoman.client import UnavailableError
from dragoman.service.server import Server
from tests.support.fake_runner import FakeRunner
from tests.support.harness import Running, eventually, health, loaded, loopback, manifest, serving, token_of

SERVICE = "dragoman.v1.TranslationService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def status(channel: grpc.aio.Channel, service: str) -> int:
    response = await health(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_not_serving_until_the_model_is_added(service: str) -> None:
    server = Server(loopback(), manifest())
    await server.open()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert await status(channel, service) == NOT_SERVING
            await server.add(loaded(FakeRunner(), manifest()))
            assert await status(channel, service) == SERVING
    finally:
        await server.stop(0)


async def test_calls_to_a_starting_server_are_unavailable() -> None:
    server = Server(loopback(), manifest())
    await server.open()
    running = Running(server, FakeRunner())
    try:
        async with running.client() as client:
            with pytest.raises(UnavailableError, match=r"^the server is starting$"):
                await client.translate(["kite"])
            with pytest.raises(UnavailableError, match=r"^the server is starting$"):
                await client.info()
            assert running.value("dragoman_refused_total", reason="draining") == 2
    finally:
        await server.stop(0)


async def test_an_unknown_service_is_not_found() -> None:
    async with serving() as running, grpc.aio.insecure_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status(channel, "nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_gets_each_change_once() -> None:
    server = Server(loopback(), manifest())
    await server.open()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watch = health(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        seen = [(await watch.read()).status]
        await server.add(loaded(FakeRunner(), manifest()))
        seen.append((await watch.read()).status)
        stopping = asyncio.create_task(server.stop(5))
        seen.append((await watch.read()).status)
        assert seen == [NOT_SERVING, SERVING, NOT_SERVING]
        with pytest.raises(grpc.aio.AioRpcError):
            await watch.read()
        await stopping


async def test_watching_an_unknown_service_reports_it_as_unknown() -> None:
    async with serving() as running, grpc.aio.insecure_channel(running.address) as channel:
        watch = health(channel).Watch(health_pb2.HealthCheckRequest(service="nope"))
        assert (await watch.read()).status == SERVICE_UNKNOWN
        watch.cancel()


async def test_health_answers_at_once_while_the_engine_is_busy() -> None:
    runner = FakeRunner()
    async with serving(runner) as running, running.client() as client:
        runner.gate.clear()
        calls = [asyncio.create_task(client.translate(["kite"] * 4)) for _ in range(16)]
        await eventually(runner.stepping.is_set)
        async with grpc.aio.insecure_channel(running.address) as channel:
            waits = []
            for _ in range(50):
                started = time.monotonic()
                assert await status(channel, "") == SERVING
                waits.append(time.monotonic() - started)
        assert sorted(waits)[-2] < 1, "the step itself is held for as long as this test takes"
        runner.gate.set()
        await asyncio.gather(*calls)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_server_whose_engine_died_is_not_serving() -> None:
    runner = FakeRunner(poison=(token_of("boat"),))

    def broken(row: int) -> None:
        raise RuntimeError("broken")

    runner.clear_row = broken  # type: ignore[method-assign]
    async with serving(runner) as running, running.client() as client:
        async with grpc.aio.insecure_channel(running.address) as channel:
            with pytest.raises(Exception, match="the model failed"):
                await client.translate(["boat"])
            async with asyncio.timeout(30):
                watch = health(channel).Watch(health_pb2.HealthCheckRequest(service=""))
                while (await watch.read()).status != NOT_SERVING:
                    pass
                watch.cancel()
            assert await status(channel, SERVICE) == NOT_SERVING
        with pytest.raises(UnavailableError, match="the engine has stopped; the server must be restarted"):
            await client.translate(["kite"])
        assert running.value("dragoman_ready", model="fake") == 0
