"""Memory: reported by a server, and bounded by a budget."""

import asyncio

import pytest

from dragoman.service.errors import StartupError
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import eventually, loaded, loopback, manifest, serving, text_of

LARGE = 2**40
"""A budget too large to bound anything."""


async def test_info_gives_the_parts_of_memory() -> None:
    async with serving() as running, running.client() as client:
        info = await client.info()
    memory = info.models[0].memory
    assert (memory.weights, memory.working, memory.cache_reserved, memory.cache_used) == (1000, 20, 200, 50)
    assert memory.resident == 1000 + memory.buffers + 20 + 100
    assert info.memory.libraries > 2**20
    assert info.memory.interpreter > 2**20
    assert info.explained_memory_bytes == info.memory.resident + memory.resident


async def test_metrics_give_the_parts_of_memory() -> None:
    async with serving() as running:
        assert running.value("dragoman_memory_bytes", model="fake", part="cache_resident") == 100
        libraries = running.value("dragoman_process_memory_bytes", part="libraries")
        interpreter = running.value("dragoman_process_memory_bytes", part="interpreter")
        assert libraries + interpreter == pytest.approx(running.value("process_resident_memory_bytes"), rel=0.3)


async def test_a_budget_too_small_is_refused_before_serving() -> None:
    server = Server(loopback(ServerSettings(memory_budget_bytes=2**20)), manifest())
    await server.open()
    try:
        with pytest.raises(StartupError, match="memory_budget_bytes is 1048576, must be at least"):
            await server.add(loaded(FakeRunner(), manifest()))
        assert not server.models
    finally:
        await server.stop(0)


async def test_a_budget_bounds_the_batch_and_answers_every_text() -> None:
    runner = FakeRunner()
    async with serving(runner, settings=ServerSettings(repetition_tokens=0, memory_budget_bytes=LARGE)) as running:
        engine = running.server.models["fake"].engine
        engine.bound_memory(3 * runner.costs().cache_bytes(1, 24, 48) + runner.most_working())
        runner.gate.clear()
        async with running.client() as client:
            asked = asyncio.create_task(client.translate([text_of(20)] * 10))
            await eventually(lambda: engine.load().active_rows == 3)
            runner.gate.set()
            assert len((await asked).translations) == 10
    assert max(runner.batches) == 3
