"""More calls than can be answered in time: who is refused is told at once, without the work of tokenizing."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest

from dragoman.client import AsyncClient, ClientError, OverloadedError
from dragoman.service.engine.lane import ENGINE
from dragoman.service.engine.runner import RowInput
from dragoman.service.engine.step import Step
from dragoman.service.settings import ServerSettings
from dragoman.service.system.tuning import NICENESS
from tests.integration.test_metrics import calls
from tests.support.fake_runner import FakeRunner
from tests.support.harness import PATIENCE_SECONDS, Running, eventually, serving, text_of


def tokenized(running: Running) -> float:
    """How many calls were."""
    return running.value("dragoman_phase_seconds_count", model="fake", phase="tokenize")


class SlowRunner(FakeRunner):
    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        time.sleep(0.02)
        return super().step(rows, only, scored)


@asynccontextmanager
async def crowded(max_call_seconds: int = 300) -> AsyncIterator[tuple[Running, AsyncClient]]:
    """A server that has just refused a call, with more before it than a second's work."""
    settings = ServerSettings(max_rows=1, repetition_tokens=0, max_call_seconds=max_call_seconds)
    async with (
        serving(SlowRunner(), settings=settings) as running,
        running.client() as client,
    ):
        waiting = [asyncio.create_task(client.translate([text_of(20)])) for _ in range(12)]
        await eventually(lambda: running.value("dragoman_finished_total", model="fake", reason="end") >= 2)
        with pytest.raises(OverloadedError):
            await client.translate([text_of(20)], timeout_seconds=0.3)
        yield running, client
        for task in waiting:
            task.cancel()


async def test_a_call_that_is_hopeless_is_refused_before_it_is_tokenized() -> None:
    async with crowded() as (running, client):
        read = tokenized(running)
        with pytest.raises(OverloadedError) as caught:
            await client.translate([text_of(20)], timeout_seconds=0.3)
        assert tokenized(running) == read
        assert running.value("dragoman_refused_total", reason="deadline") == 2
        assert calls(running, "Translate", "RESOURCE_EXHAUSTED") == 2
    assert (caught.value.retry_after_seconds or 0) > 0


async def test_others_are_read_and_answered_meanwhile() -> None:
    async with crowded() as (_, client):
        assert (await client.translate(["red kite"], timeout_seconds=PATIENCE_SECONDS)).texts == ("red kite",)


async def test_what_is_at_fault_is_so_however_late_it_comes() -> None:
    async with crowded() as (_, client):
        with pytest.raises(ClientError) as caught:
            await client.translate([], timeout_seconds=0.3)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_would_take_longer_than_any_call_may_is_refused_at_once() -> None:
    async with crowded(max_call_seconds=3) as (_, client):
        began = time.monotonic()
        with pytest.raises(OverloadedError):
            await client.translate([text_of(20)] * 20, timeout_seconds=PATIENCE_SECONDS)
        assert time.monotonic() - began < 2


async def test_threads_that_compute_give_way_to_the_one_that_answers() -> None:
    async with serving(), asyncio.timeout(PATIENCE_SECONDS):
        (thread,) = (each for each in threading.enumerate() if each.name == ENGINE and each.native_id)
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        assert thread.native_id is not None
        await eventually(lambda: os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == min(19, own + NICENESS))
