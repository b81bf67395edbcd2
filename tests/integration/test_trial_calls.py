"""Trial calls: made by the server itself before it is ready."""

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
from tests.support.harness import PATIENCE_SECONDS, Running, encoder_manifest, loaded, loopback, manifest


@asynccontextmanager
async def after_trial_calls(runner: FakeRunner, what: Manifest) -> AsyncIterator[Running]:
    server = Server(loopback().model_copy(update={"warmup_seconds": PATIENCE_SECONDS}), what)
    await server.open()
    try:
        await server.add(loaded(runner, what))
        yield Running(server, runner)
    finally:
        await server.stop(1)


async def test_trial_calls_run_the_model_and_are_not_counted() -> None:
    runner = FakeRunner()
    async with after_trial_calls(runner, manifest()) as running:
        assert len(runner.batches) >= CALLS
        for name in ("dragoman_texts_total", "dragoman_finished_total", "grpc_server_started_total"):
            family = next(each for each in running.server.registry.collect() if f"{each.name}_total" == name)
            assert sum(sample.value for sample in family.samples) == 0, name
        before = len(runner.batches)
        async with running.client() as client:
            assert (await client.translate(["red kite"])).texts == ("red kite",)
        assert len(runner.batches) == before + 3


async def test_an_embedding_model_has_trial_calls_too() -> None:
    runner = FakeRunner()
    async with after_trial_calls(runner, encoder_manifest()) as running, running.client() as client:
        assert runner.stepping.is_set()
        assert len((await client.embed(["kite"])).embeddings) == 1


async def test_a_failed_trial_call_is_logged_and_the_model_served(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    runner = FakeRunner(broken=range(1000))
    async with after_trial_calls(runner, manifest()) as running, grpc.aio.insecure_channel(running.address) as channel:
        assert await status(channel, "") == SERVING
    assert "trial calls to fake failed: the model failed on texts[0]" in caplog.text
