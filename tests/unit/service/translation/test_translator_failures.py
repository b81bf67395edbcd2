"""Translator calls that end without an answer: cancelled, late, refused or failed."""

import asyncio
from collections.abc import Sequence as Row

import pytest

from dragoman.service.engine.sequence import Finish, Sequence
from dragoman.service.errors import (
    DeadlineExceededError,
    DeadlineForecast,
    DeadlineUnreachableError,
    ModelFailedError,
    NotServingError,
    OverloadedError,
)
from dragoman.service.translation.options import EmbedOptions, TranslateOptions
from tests.support.fake_runner import FakeRunner
from tests.support.harness import PATIENCE_SECONDS, Clock, eventually, manifest, token_of
from tests.unit.service.translation.bench import FOREVER, translating


async def test_a_cancelled_call_leaves_the_engine() -> None:
    runner = FakeRunner()
    async with translating(runner) as bench:
        runner.gate.clear()
        call = asyncio.create_task(bench.translator.translate(["kite", "boat", "red kite"], TranslateOptions()))
        await eventually(runner.stepping.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        runner.gate.set()
        await eventually(lambda: bench.finished("cancelled") == 3)
        load = bench.engine.load()
        assert (load.active_rows, load.waiting_sequences, load.waiting_tokens) == (0, 0, 0)


async def test_a_call_without_time_left_is_refused_unqueued() -> None:
    async with translating() as bench:
        with pytest.raises(DeadlineExceededError) as translating_late:
            await bench.translator.translate(["kite"], TranslateOptions(), seconds_left=0)
        with pytest.raises(DeadlineExceededError) as embedding_late:
            await bench.translator.embed(["kite"], EmbedOptions(), seconds_left=-1)
        assert bench.runner.batches == []
    assert (translating_late.value.refusal, embedding_late.value.refusal) == ("deadline", "deadline")


async def test_a_deadline_that_passes_in_the_engine_is_reported() -> None:
    clock, runner = Clock(), FakeRunner(endless=(token_of("kite"),))
    async with translating(runner, manifest(max_output_tokens=FOREVER), clock=clock) as bench:
        call = asyncio.create_task(
            bench.translator.translate(["kite"], TranslateOptions(), seconds_left=PATIENCE_SECONDS)
        )
        await eventually(runner.stepping.is_set)
        clock.ahead += 2 * PATIENCE_SECONDS
        with pytest.raises(DeadlineExceededError) as caught:
            await call
        assert bench.finished("deadline") == 1
    assert caught.value.refusal is None
    tokens = bench.registry.get_sample_value("dragoman_tokens_total", {"model": "fake", "kind": "wasted"})
    assert tokens
    assert tokens > 0


async def test_a_call_shed_from_the_queue_gets_a_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    def shed(sequences: Row[Sequence]) -> None:
        for sequence in sequences:
            sequence.end(Finish.DEADLINE, 0.0, DeadlineUnreachableError(DeadlineForecast(4.96, 2.0)))
            sequence.done(sequence)

    async with translating() as bench:
        monkeypatch.setattr(bench.engine, "submit", shed)
        with pytest.raises(DeadlineUnreachableError, match=r"deadline by about 3\.0 s \(.*\); retry in 3 s"):
            await bench.translator.translate(["kite"], TranslateOptions(), seconds_left=2.0)


async def test_one_failed_text_fails_the_call_and_cancels_the_rest() -> None:
    runner = FakeRunner(poison=(token_of("boat"),), endless=(token_of("bird"),))
    async with translating(runner, manifest(max_output_tokens=FOREVER)) as bench:
        with pytest.raises(ModelFailedError) as caught:
            await bench.translator.translate(["", "bird", "red boat", "bird"], TranslateOptions())
        assert str(caught.value) == "the model failed on texts[2]: the model's log-probability is nan"
        await eventually(lambda: bench.finished("cancelled") == 2)
        assert (await bench.translator.translate(["kite"], TranslateOptions())).texts == ("kite",)


async def test_a_runtime_error_is_hidden_from_the_caller() -> None:
    async with translating(FakeRunner(broken=(token_of("kite"),))) as bench:
        with pytest.raises(ModelFailedError) as caught:
            await bench.translator.translate(["kite"], TranslateOptions())
        assert str(caught.value) == "the model failed on texts[0]: the runtime raised an error"
        assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_full_queue_gives_a_retry_delay() -> None:
    runner = FakeRunner()
    async with translating(runner) as bench:
        runner.gate.clear()
        first = asyncio.create_task(bench.translator.translate(["kite"] * 12, TranslateOptions()))
        await eventually(lambda: bench.engine.load().active_rows == 4)
        with pytest.raises(OverloadedError, match="the queue holds 8 of 8 sequences; retry in 1 s"):
            await bench.translator.translate(["boat"], TranslateOptions())
        runner.gate.set()
        await first


async def test_a_stopped_engine_refuses_calls() -> None:
    async with translating() as bench:
        bench.engine.stop()
        with pytest.raises(NotServingError, match="the engine has stopped"):
            await bench.translator.translate(["kite"], TranslateOptions())
