"""Overload: calls that cannot be answered in time are refused at once, before they are tokenized."""

import asyncio
import os
import threading
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

STEP_SECONDS = 1.0
"""Duration of a step by the server's clock; really it takes next to no time."""

CALLS = 12
"""Calls of 20 steps each before the server: far more work than any PATIENCE_SECONDS."""

STEPS_BEFORE_STOP = 50
"""Two calls and a half: the forecast knows the pace, and 9 calls are left in the queue."""

LIMIT_SECONDS = 500
"""Limit on a call's time: longer than the calls of the crowd take, shorter than 20 texts after them."""


def tokenized(running: Running) -> float:
    """Number of calls that were tokenized."""
    return running.value("dragoman_phase_seconds_count", model="fake", phase="tokenize")


class TimedRunner(FakeRunner):
    """Sets the clock forward by STEP_SECONDS at each step, and closes its gate once, in the middle of the crowd.

    The queue and the forecast then stand still, so that no outcome depends on the speed of the machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        self.now += STEP_SECONDS
        steps = super().step(rows, only, scored)
        if len(self.batches) == STEPS_BEFORE_STOP:
            self.gate.clear()
        return steps


@asynccontextmanager
async def crowded() -> AsyncIterator[tuple[Running, AsyncClient]]:
    """A server that has just refused a call, with more queued before it than its deadline allows."""
    settings = ServerSettings(max_rows=1, repetition_tokens=0, max_call_seconds=LIMIT_SECONDS, run_timeout_seconds=0)
    runner = TimedRunner()
    runner.gate.clear()
    async with (
        serving(runner, settings=settings, clock=runner.clock) as running,
        running.client() as client,
    ):
        crowd = [
            asyncio.create_task(client.translate([text_of(20)], timeout_seconds=LIMIT_SECONDS)) for _ in range(CALLS)
        ]
        await eventually(lambda: running.value("dragoman_queue_sequences", model="fake") == CALLS - 1)
        runner.gate.set()
        await eventually(lambda: len(runner.batches) == STEPS_BEFORE_STOP)
        with pytest.raises(OverloadedError):
            await client.translate([text_of(20)])
        yield running, client
        for task in crowd:
            task.cancel()


async def test_a_hopeless_call_is_refused_before_it_is_tokenized() -> None:
    async with crowded() as (running, client):
        read = tokenized(running)
        with pytest.raises(OverloadedError) as caught:
            await client.translate([text_of(20)])
        assert tokenized(running) == read
        assert running.value("dragoman_refused_total", reason="deadline") == 2
        assert calls(running, "Translate", "RESOURCE_EXHAUSTED") == 2
    assert (caught.value.retry_after_seconds or 0) > 0


async def test_a_call_with_time_left_is_answered_meanwhile() -> None:
    async with crowded() as (running, client), asyncio.timeout(PATIENCE_SECONDS):
        call = asyncio.create_task(client.translate(["red kite"], timeout_seconds=LIMIT_SECONDS))
        await eventually(lambda: running.value("dragoman_queue_sequences", model="fake") == CALLS - 2)
        running.runner.gate.set()
        assert (await call).texts == ("red kite",)


async def test_an_invalid_call_is_invalid_even_when_too_late() -> None:
    async with crowded() as (_, client):
        with pytest.raises(ClientError) as caught:
            await client.translate([])
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_beyond_the_call_time_limit_is_refused_at_once() -> None:
    async with crowded() as (running, client), asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(OverloadedError):
            await client.translate([text_of(20)] * 20, timeout_seconds=10 * LIMIT_SECONDS)
        assert len(running.runner.batches) == STEPS_BEFORE_STOP, "it did not wait for the model"


async def test_compute_threads_have_a_lower_priority() -> None:
    async with serving(), asyncio.timeout(PATIENCE_SECONDS):
        (thread,) = (each for each in threading.enumerate() if each.name == ENGINE and each.native_id)
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        assert thread.native_id is not None
        await eventually(lambda: os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == min(19, own + NICENESS))
