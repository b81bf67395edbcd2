"""Fault injection into a model under many callers: each caller gets its own answer or its own error."""

import asyncio
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import pytest

from dragoman.client import ClientError
from dragoman.client.values import Pooling
from dragoman.service.engine import scheduler
from dragoman.service.engine.observer import Run
from dragoman.service.engine.runner import MemoryRefusedError, RowInput
from dragoman.service.engine.step import Step
from dragoman.service.settings import ServerSettings
from dragoman.service.translation.pooling import pool
from tests.integration.test_metrics import calls
from tests.support.fake_runner import FakeRunner
from tests.support.harness import (
    MAX_SOURCE_TOKENS,
    PATIENCE_SECONDS,
    Clock,
    Running,
    eventually,
    manifest,
    sentences,
    serving,
    token_of,
    tokenizer,
)

CALLERS = 32
ROUNDS = 6
GAUGES = ("dragoman_queue_sequences", "dragoman_queue_tokens", "dragoman_active_rows")
HELD = ("queue_sequences", "active_rows")
"""Gauges that count each sequence in the engine once."""

T = TypeVar("T")


SHAPES: Mapping[str, Callable[[Any], Any]] = {
    "fewer tokens": lambda states: states[:-1],
    "narrow": lambda states: states[:, :-1],
    "wide": lambda states: states[:, [0, 1, 2, 2]],
    "flat": lambda states: states[:, 0],
}
"""Wrong shapes of one text's states."""

COUNTS = ("short", "long")
"""One result too few, or one too many; an insertion has no results."""

FAULTS: Mapping[Run, tuple[str, ...]] = {
    "embed": ("raise", "memory", "slow", *COUNTS, *SHAPES),
    "insert": ("raise", "memory", "slow"),
    "step": ("raise", "memory", "slow", *COUNTS),
}
"""The faults that each kind of run can have."""


class Unreliable(FakeRunner):
    """Has a fault in one run of `every`: those of `faults` that apply to the run, in turn.

    Runs of a single row have none.
    """

    def __init__(self, faults: Sequence[str], every: int, **more: Any) -> None:
        super().__init__(**more)
        self._every = every
        self._faults: dict[Run, list[str]] = {run: [each for each in faults if each in FAULTS[run]] for run in FAULTS}
        self._runs = Counter[Run]()
        self.failed = Counter[tuple[Run, str]]()

    def missing(self, *runs: Run) -> set[tuple[Run, str]]:
        """Faults of `runs` that have not occurred yet."""
        return {(run, fault) for run in runs for fault in self._faults[run]} - set(self.failed)

    def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        fault = self._draw("embed", len(sources))
        found = super().embed(sources)
        if fault in SHAPES:
            return [SHAPES[fault](found[0]), *found[1:]]
        return _counted(found, fault)

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        self._draw("insert", len(sources))
        super().insert(sources, first_row)

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        fault = self._draw("step", len(rows) if only is None else 1)
        return _counted(super().step(rows, only, scored), fault)

    def _draw(self, run: Run, rows: int) -> str:
        faults = self._faults[run]
        if rows == 1 or not faults:
            return ""
        self._runs[run] += 1
        turn, rest = divmod(self._runs[run], self._every)
        if rest:
            return ""
        fault = faults[turn % len(faults)]
        self.failed[run, fault] += 1
        if fault == "raise":
            raise RuntimeError("a passing fault")
        if fault == "memory":
            raise MemoryRefusedError("no memory now")
        if fault == "slow":
            time.sleep(0.01)
        return fault


def _counted(found: list[T], fault: str) -> list[T]:
    """Drop or add the first result, so that every other one would go to the wrong row."""
    if fault == "short":
        return found[1:]
    return [found[-1], *found] if fault == "long" else found


def vector_of(text: str) -> list[float]:
    """The embedding of `text` by a model without faults."""
    (states,) = FakeRunner().embed([tokenizer().encode(text)])
    usual = manifest().embedding
    return list(map(float, pool(states, Pooling(usual.pooling), usual.normalize)))


def fitting(count: int) -> list[str]:
    """`count` texts within the model's limits."""
    return [text for text in sentences(4 * count) if len(tokenizer().encode(text)) <= MAX_SOURCE_TOKENS][:count]


def code(outcome: object) -> str:
    return outcome.code.name if isinstance(outcome, ClientError) else "OK"


@pytest.fixture
def soon_relieved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows run together again soon after memory was refused, since runs of one row have no faults."""
    monkeypatch.setattr(scheduler, "RELIEF_SECONDS", 0.01)


async def come_to_rest(running: Running) -> None:
    await eventually(lambda: not any(running.value(gauge, model="fake") for gauge in GAUGES))


@pytest.mark.usefixtures("soon_relieved")
@pytest.mark.parametrize(
    "faults", [("raise",), ("memory",), ("slow",), (*COUNTS, *SHAPES)], ids=["raise", "memory", "slow", "wrong results"]
)
async def test_a_passing_fault_fails_no_call_and_mixes_no_answers(faults: tuple[str, ...]) -> None:
    runner = Unreliable(faults, every=3)
    texts = fitting(CALLERS)
    rounds = 0
    async with serving(runner) as running, running.client() as client, asyncio.timeout(2 * PATIENCE_SECONDS):
        # The number of rows per run is chance, and so is the round in which each fault has occurred.
        while rounds < ROUNDS or runner.missing(*FAULTS):
            vectors = [asyncio.create_task(client.embed([text, text])) for text in texts[:4]]
            answers = await asyncio.gather(*(client.translate([text]) for text in texts))
            assert [answer.texts for answer in answers] == [(text,) for text in texts]
            for text, embedded in zip(texts, await asyncio.gather(*vectors), strict=False):
                assert [list(each.values) for each in embedded.embeddings] == [pytest.approx(vector_of(text))] * 2
            rounds += 1
        await come_to_rest(running)
        assert calls(running, "Translate", "OK") == CALLERS * rounds
        noted = {
            (run, cause): running.value("dragoman_run_failures_total", model="fake", run=run, cause=cause)
            for run in FAULTS
            for cause in ("error", "memory")
        }
    # Each fault is counted, and nothing else: a slow run is no fault.
    expected = Counter[tuple[Run, str]]()
    for (run, fault), times in runner.failed.items():
        if fault != "slow":
            expected[run, "memory" if fault == "memory" else "error"] += times
    assert {key: times for key, times in noted.items() if times} == expected


@pytest.mark.usefixtures("soon_relieved")
async def test_among_passing_faults_only_failing_texts_fail() -> None:
    broken, poison = token_of("boat"), token_of("bird")
    runner = Unreliable(("raise", "memory", "slow", "short"), every=5, broken=(broken,), poison=(poison,))
    rng = random.Random(17)
    expected = Counter[str]()
    rounds = 0
    async with serving(runner) as running, running.client() as client, asyncio.timeout(3 * PATIENCE_SECONDS):
        while rounds < ROUNDS or runner.missing("insert", "step"):
            rounds += 1
            texts = [rng.choice(("kite", "red kite", "old tree", "red boat", "old bird")) for _ in range(CALLERS)]
            waits = [rng.uniform(0, 0.02) for _ in texts]

            async def ask(text: str, wait: float) -> Any:
                await asyncio.sleep(wait)
                return await client.translate([text])

            outcomes = await asyncio.gather(*map(ask, texts, waits), return_exceptions=True)
            for text, outcome in zip(texts, outcomes, strict=True):
                fails = "boat" in text or "bird" in text
                assert code(outcome) == ("INTERNAL" if fails else "OK"), (text, outcome)
                expected[code(outcome)] += 1
                if not isinstance(outcome, BaseException):
                    assert outcome.texts == (text,)
        await come_to_rest(running)
        assert {name: calls(running, "Translate", name) for name in expected} == expected
        failed = running.value("dragoman_finished_total", model="fake", reason="failed")
    assert failed == expected["INTERNAL"] > 0


@pytest.mark.parametrize("method", ["translate", "embed"])
async def test_a_missing_result_fails_its_own_text_alone(method: str) -> None:
    short = token_of("boat")

    class Short(FakeRunner):
        def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
            return [states for states in super().embed(sources) if short not in states[:, 0]]

        def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
            return [step for step in super().step(rows, only, scored) if step.token != short]

    async with serving(Short()) as running, running.client() as client:
        asked = [getattr(client, method)([text]) for text in ("kite", "boat", "bird")]
        kite, boat, bird = await asyncio.gather(*asked, return_exceptions=True)
        assert (code(kite), code(boat), code(bird)) == ("OK", "INTERNAL", "OK")
        if method == "translate":
            assert [answer.texts for answer in (kite, bird)] == [("kite",), ("bird",)]  # type: ignore[union-attr]
        assert running.value("dragoman_ready", model="fake") == 1
        await come_to_rest(running)


async def test_a_missing_state_vector_fails_its_own_text_alone() -> None:
    class Narrow(FakeRunner):
        def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
            return [states[:-1] if len(states) == 4 else states for states in super().embed(sources)]

    async with serving(Narrow()) as running, running.client() as client:
        outcomes = await asyncio.gather(
            *(client.embed([text]) for text in ("kite", "old red kite", "red kite")), return_exceptions=True
        )
    assert [code(outcome) for outcome in outcomes] == ["OK", "INTERNAL", "OK"]


async def test_nonfinite_embeddings_fail_their_own_calls_alone() -> None:
    runner = FakeRunner(poison=(token_of("boat"),))
    async with serving(runner) as running, running.client() as client:
        texts = [random.Random(number).choice(("kite", "boat", "bird")) for number in range(CALLERS)]
        outcomes = await asyncio.gather(*(client.embed([text]) for text in texts), return_exceptions=True)
        assert [code(outcome) for outcome in outcomes] == ["INTERNAL" if text == "boat" else "OK" for text in texts]
        for outcome in outcomes:
            if not isinstance(outcome, BaseException):
                assert all(map(math.isfinite, outcome.embeddings[0].values))


async def test_a_killed_caller_leaves_nothing_behind() -> None:
    runner = FakeRunner()
    async with serving(runner) as running, running.client() as client:
        runner.gate.clear()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *("-m", "dragoman.service.cli", "translate", "--address", running.address, "old kite")
        )
        await eventually(runner.stepping.is_set)
        process.kill()
        await process.wait()
        await eventually(lambda: calls(running, "Translate", "CANCELLED") == 1)
        runner.gate.set()
        await come_to_rest(running)
        assert running.value("dragoman_finished_total", model="fake", reason="cancelled") == 1
        assert (await client.translate(["kite"])).texts == ("kite",)


async def test_a_hanging_model_leaves_none_of_many_callers_waiting() -> None:
    clock, runner = Clock(), FakeRunner()
    settings = ServerSettings(max_rows=8)
    async with serving(runner, settings=settings, clock=clock) as running, running.client() as client:
        runner.gate.clear()
        asked = [asyncio.create_task(client.translate([text])) for text in fitting(CALLERS)]
        await eventually(runner.stepping.is_set)
        # All of them must have reached the engine: a call still outside it would find its deadline passed.
        await eventually(lambda: sum(running.value(f"dragoman_{each}", model="fake") for each in HELD) == CALLERS)
        clock.ahead += settings.run_timeout_seconds + 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {code(outcome) for outcome in outcomes} == {grpc.StatusCode.UNAVAILABLE.name}
        runner.gate.set()
        await come_to_rest(running)
        await eventually(lambda: running.value("dragoman_ready", model="fake") == 1)
        assert (await client.translate(["kite"])).texts == ("kite",)
