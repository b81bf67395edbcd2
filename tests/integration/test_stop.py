"""Stopping in order: running calls finish, new ones are refused, and idle streams are not waited for."""

import asyncio
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dragoman.client import AsyncClient, UnavailableError
from dragoman.service.errors import StartupError
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import Running, eventually, fetch, health, loaded, loopback, manifest, serving


async def started(runner: FakeRunner) -> Running:
    server = Server(loopback(), manifest())
    await server.open()
    await server.add(loaded(runner, manifest()))
    return Running(server, runner)


def in_engine(running: Running) -> float:
    return sum(running.value(f"dragoman_{gauge}", model="fake") for gauge in ("active_rows", "queue_sequences"))


async def test_running_calls_finish_and_new_ones_are_refused() -> None:
    runner = FakeRunner()
    running = await started(runner)
    runner.gate.clear()
    async with running.client() as client, running.client() as late:
        calls = [asyncio.create_task(client.translate([f"kite {number}"])) for number in range(8)]
        await eventually(lambda: in_engine(running) == 8)
        stopping = asyncio.create_task(running.server.stop(30))
        await asyncio.sleep(0)
        asked = time.monotonic()
        for other in (client, late):
            with pytest.raises(UnavailableError, match=r"^the server is stopping$"):
                await other.translate(["boat"])
        assert time.monotonic() - asked < 10
        # Load balancers must send calls elsewhere, but the process must not be restarted before its calls have ended.
        assert await fetch(running.server, "/readyz") == (503, "no\n")
        assert await fetch(running.server, "/healthz") == (200, "ok\n")
        assert not stopping.done()
        runner.gate.set()
        assert [(await call).texts for call in calls] == [(f"kite {number}",) for number in range(8)]
        await stopping


async def test_calls_that_outlast_the_grace_are_cancelled() -> None:
    runner = FakeRunner()
    running = await started(runner)
    runner.gate.clear()
    async with running.client() as client:
        calls = [asyncio.create_task(client.translate(["kite"])) for _ in range(3)]
        await eventually(lambda: in_engine(running) == 3)
        asyncio.get_running_loop().call_later(0.5, runner.gate.set)
        await running.server.stop(0.1)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, UnavailableError)
            assert outcome.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert running.value("dragoman_finished_total", model="fake", reason="cancelled") == 3


async def test_watchers_of_health_are_not_waited_for() -> None:
    running = await started(FakeRunner())
    async with grpc.aio.insecure_channel(running.address) as channel:
        watch = health(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        await watch.read()
        began = time.monotonic()
        await running.server.stop(30)
        assert time.monotonic() - began < 10
        watch.cancel()


async def test_ports_are_free_after_the_stop() -> None:
    first = await started(FakeRunner())
    settings = ServerSettings(port=first.server.port, metrics_port=first.server.metrics_port)
    await first.server.stop(0)
    second = Server(settings, manifest())
    await second.open()
    assert (second.port, second.metrics_port) == (first.server.port, first.server.metrics_port)
    await second.stop(0)


async def test_a_second_server_on_the_same_port_does_not_start() -> None:
    async with serving() as running:
        server = Server(ServerSettings(port=running.server.port, metrics_port=0), manifest())
        with pytest.raises(StartupError, match=f"^port {running.server.port} on 127.0.0.1 is in use$"):
            await server.open()
        await server.stop(0)
        async with running.client() as client:
            assert (await client.translate(["kite"])).texts == ("kite",)


async def test_a_server_whose_metrics_port_is_taken_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(ServerSettings(port=0, metrics_port=port), manifest())
        with pytest.raises(StartupError, match=f"^port {port} on 127.0.0.1 is in use$"):
            await server.open()
        await server.stop(0)


async def test_an_ipv6_address_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no such address")
    server = Server(ServerSettings(host="::1", port=0, metrics_port=0), manifest())
    await server.open()
    await server.add(loaded(FakeRunner(), manifest()))
    async with AsyncClient(f"[::1]:{server.port}") as client:
        assert (await client.translate(["kite"])).texts == ("kite",)
    with socket.create_connection(("::1", server.metrics_port)):
        pass
    await server.stop(0)


async def test_metrics_may_be_on_another_address_than_calls() -> None:
    settings = loopback(ServerSettings(host="127.0.0.1", metrics_host="127.0.0.2"))
    server = Server(settings, manifest())
    await server.open()
    with socket.create_connection(("127.0.0.2", server.metrics_port)):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.metrics_port))
    with socket.create_connection(("127.0.0.1", server.port)):
        pass
    await server.stop(0)


@pytest.mark.parametrize("settings", [ServerSettings(host="192.0.2.1"), ServerSettings(metrics_host="192.0.2.1")])
async def test_an_address_of_another_host_is_named_in_the_error(settings: ServerSettings) -> None:
    server = Server(loopback(settings), manifest())
    with pytest.raises(StartupError, match=r"^cannot listen on 192\.0\.2\.1, port 0: "):
        await server.open()
    await server.stop(0)
