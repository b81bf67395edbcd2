"""Retries hide restarts and full queues from callers."""

import asyncio

import pytest

from dragoman.client import AsyncClient, Client, OverloadedError, Retries
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import PATIENCE_SECONDS, Running, eventually, free_port, loaded, loopback, manifest, serving

RESTARTS = 3
CALLERS = 8


async def start(port: int) -> Server:
    server = Server(loopback().model_copy(update={"port": port}), manifest())
    await server.open()
    await server.add(loaded(FakeRunner(), manifest()))
    return server


async def test_restarts_under_load_fail_no_call() -> None:
    port, answered, done = free_port(), 0, False
    server = await start(port)

    async def call(client: AsyncClient, caller: int) -> None:
        nonlocal answered
        while not done:
            text = f"kite {caller}"
            assert (await client.translate([text])).texts == (text,)
            answered += 1

    async with (
        AsyncClient(f"127.0.0.1:{port}", timeout_seconds=PATIENCE_SECONDS) as client,
        asyncio.TaskGroup() as all_,
    ):
        for caller in range(CALLERS):
            all_.create_task(call(client, caller))
        for _ in range(RESTARTS):
            before = answered
            await eventually(lambda before=before: answered > before + CALLERS)  # type: ignore[misc]
            await server.stop(1)
            server = await start(port)
        done = True
    await server.stop(0)


async def test_calls_of_a_stopped_server_move_to_another() -> None:
    lost, stays = FakeRunner(), FakeRunner()
    first, second = Server(loopback(), manifest()), Server(loopback(), manifest())
    for server, runner in ((first, lost), (second, stays)):
        await server.open()
        await server.add(loaded(runner, manifest()))
    address = f"ipv4:127.0.0.1:{first.port},127.0.0.1:{second.port}"
    async with AsyncClient(address, timeout_seconds=PATIENCE_SECONDS) as client:
        # Until the client has discovered both servers.
        while not (lost.batches and stays.batches):
            await client.translate(["kite"])
        lost.gate.clear()
        lost.stepping.clear()
        calls = [asyncio.create_task(client.translate([f"kite {number}"])) for number in range(10)]
        await eventually(lost.stepping.is_set)
        asyncio.get_running_loop().call_later(0.5, lost.gate.set)
        await first.stop(0)
        assert [(await call).texts for call in calls] == [(f"kite {number}",) for number in range(10)]
    await second.stop(0)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_calls_refused_by_a_full_queue_are_repeated(kind: str) -> None:
    runner = FakeRunner()
    settings = ServerSettings(max_rows=1, queue_sequences=1, repetition_tokens=0)
    async with serving(runner, settings=settings) as running, AsyncClient(running.address) as client:
        runner.gate.clear()
        first = asyncio.create_task(client.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        second = asyncio.create_task(client.translate(["boat"]))
        await eventually(lambda: running.value("dragoman_queue_sequences", model="fake") == 1)
        third = asyncio.create_task(one_more(running, kind))
        await eventually(lambda: running.value("dragoman_refused_total", reason="queue_full") == 1)
        runner.gate.set()
        assert await third == ("bird",)
        assert (await first).texts + (await second).texts == ("kite", "boat")


async def one_more(running: Running, kind: str) -> tuple[str, ...]:
    if kind == "async":
        async with AsyncClient(running.address) as client:
            return (await client.translate(["bird"])).texts

    def call() -> tuple[str, ...]:
        with Client(running.address) as client:
            return client.translate(["bird"]).texts

    return await asyncio.to_thread(call)


async def test_no_overload_budget_means_no_repetition() -> None:
    runner = FakeRunner()
    settings = ServerSettings(max_rows=1, queue_sequences=1, repetition_tokens=0)
    async with serving(runner, settings=settings) as running, running.client() as client:
        runner.gate.clear()
        first = asyncio.create_task(client.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        second = asyncio.create_task(client.translate(["boat"]))
        await eventually(lambda: running.value("dragoman_queue_sequences", model="fake") == 1)
        async with AsyncClient(running.address, retries=Retries(overload_budget=0)) as poor:
            with pytest.raises(OverloadedError):
                await poor.translate(["bird"])
        assert running.value("dragoman_refused_total", reason="queue_full") == 1
        runner.gate.set()
        await asyncio.gather(first, second)
