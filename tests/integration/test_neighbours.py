"""Many concurrent callers, good and bad: each gets its own answer or its own error."""

import asyncio
import random

import pytest

from dragoman.client import AsyncClient, InvalidArgumentError, TranslateResult
from tests.support.fake_runner import FakeRunner
from tests.support.harness import MAX_CHARACTERS, eventually, serving

CALLERS = 64
ROUNDS = 20
KINDS = ("good",) * 7 + ("too long", "bad language", "cancelled")


async def ask(client: AsyncClient, kind: str, text: str) -> TranslateResult:
    match kind:
        case "too long":
            return await client.translate([text + "." * MAX_CHARACTERS])
        case "bad language":
            return await client.translate([text], to="tlh")
        case _:
            return await client.translate([text])


def text_of_caller(rng: random.Random, number: int) -> str:
    words = rng.choices(("kite", "boat", "river", "red"), k=rng.randint(0, 2))
    return " ".join((str(number), *words))


async def test_no_caller_gets_the_answer_of_another() -> None:
    rng = random.Random(28)
    runner = FakeRunner()
    async with serving(runner) as running, running.client() as client:
        for round_ in range(ROUNDS):
            kinds = [rng.choice(KINDS) for _ in range(CALLERS)]
            texts = [text_of_caller(rng, number) for number in range(CALLERS)]
            if round_ % 5 == 2:
                # One run of this round raises, whatever its texts.
                runner.fault = RuntimeError("a passing fault")
            calls = [asyncio.create_task(ask(client, kind, text)) for kind, text in zip(kinds, texts, strict=True)]
            await asyncio.sleep(rng.choice((0, 0.001, 0.01)))
            for kind, call in zip(kinds, calls, strict=True):
                if kind == "cancelled":
                    call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for kind, text, outcome in zip(kinds, texts, outcomes, strict=True):
                match kind:
                    case "good":
                        assert isinstance(outcome, TranslateResult), outcome
                        assert outcome.texts == (text,)
                    case "cancelled":
                        answered = isinstance(outcome, TranslateResult) and outcome.texts == (text,)
                        assert answered or isinstance(outcome, asyncio.CancelledError)
                    case _:
                        field = {"too long": r"texts\[0\] has", "bad language": "target_language 'tlh'"}[kind]
                        assert isinstance(outcome, InvalidArgumentError)
                        with pytest.raises(InvalidArgumentError, match=field):
                            raise outcome
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        assert running.value("dragoman_queue_sequences", model="fake") == 0
        assert running.value("dragoman_finished_total", model="fake", reason="failed") == 0
        assert (
            sum(
                running.value("dragoman_run_failures_total", model="fake", run=run, cause="error")
                for run in ("insert", "step")
            )
            > 0
        )
    assert max(runner.batches) > 1
