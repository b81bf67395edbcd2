"""The calls that a server makes itself before it is ready."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from dragoman.bundle.manifest import Manifest
from dragoman.service.loading.trial_calls import CALLS
from dragoman.service.server import Server
from tests.integration.test_health import SERVING, status
from tests.support.fake_runner import FakeRunner
from tests.support.harness import Running, encoder_manifest, loaded, loopback, manifest


@asynccontextmanager
async def rehearsed(runner: FakeRunner, what: Manifest) -> AsyncIterator[Running]:
    server = Server(loopback().model_copy(update={"warmup_seconds": 10}), what)
    await server.open()
    try:
        await server.add(loaded(runner, what))
        yield Running(server, runner)
    finally:
        await server.stop(1)


async def test_first_calls_are_made_in_advance_and_counted_nowhere() -> None:
    runner = FakeRunner()
    async with rehearsed(runner, manifest()) as running:
        assert len(runner.batches) >= CALLS
        for name in ("dragoman_texts_total", "dragoman_finished_total", "grpc_server_started_total"):
            family = next(each for each in running.server.registry.collect() if f"{each.name}_total" == name)
            assert sum(sample.value for sample in family.samples) == 0, name
        before = len(runner.batches)
        async with running.client() as client:
            assert (await client.translate(["red kite"])).texts == ("red kite",)
        assert len(runner.batches) == before + 3


async def test_a_model_that_only_embeds_has_them_too() -> None:
    runner = FakeRunner()
    async with rehearsed(runner, encoder_manifest()) as running, running.client() as client:
        assert runner.stepping.is_set()
        assert len((await client.embed(["kite"])).embeddings) == 1


async def test_one_that_fails_is_told_and_keeps_nobody_from_being_served(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    runner = FakeRunner(broken=range(1000))
    async with rehearsed(runner, manifest()) as running, grpc.aio.insecure_channel(running.address) as channel:
        assert await status(channel, "") == SERVING
    assert "the first calls of fake could not be made in advance: the model failed on texts[0]" in caplog.text
