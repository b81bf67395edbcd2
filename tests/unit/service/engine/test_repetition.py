"""Outputs that have become a loop."""

import random
from dataclasses import replace

import pytest

from dragoman.service.engine.repetition import Repetition
from dragoman.service.engine.sequence import Finish
from tests.unit.service.engine.schedules import END, ROOMY, WORD, running, sequence, steps


@pytest.mark.parametrize("pattern", [(15,), (15, 16), (15, 15, 16), (15, 16, 17, 18)], ids=str)
def test_a_looping_output_is_stopped(pattern: tuple[int, ...]) -> None:
    guarded, sound = sequence(max_output=100), sequence(max_output=100)
    scheduler = running(guarded, sound, limits=replace(ROOMY, repetition=Repetition(4, 3)))
    output = [1, 3, 4, *pattern * 5]
    for place, token in enumerate(output):
        if guarded.finish is None:
            scheduler.update(steps(token, 100 + place), float(place))
    assert guarded.finish is Finish.REPETITION
    assert guarded.tokens == [1, 3, 4, *pattern * 3], "the third repetition makes it a loop"
    assert sound.finish is None


@pytest.mark.parametrize(
    "output",
    [(5, 5, 6) * 2, (1, 2, 3, 4, 5) * 6, (5, 5, 6, 5, 5, 7, 5, 5, 8)],
    ids=["too few", "too long", "no pattern"],
)
def test_an_output_without_a_loop_continues(output: tuple[int, ...]) -> None:
    text = sequence(max_output=len(output) + 1)
    scheduler = running(text, limits=replace(ROOMY, repetition=Repetition(4, 3)))
    for token in output:
        scheduler.update(steps(token + 10), 0.0)
    assert (text.finish, len(text.tokens)) == (None, len(output))


def test_an_end_or_a_limit_takes_precedence_over_a_loop() -> None:
    ended, cut = sequence(max_output=9), sequence(max_output=2)
    scheduler = running(ended, cut, limits=replace(ROOMY, repetition=Repetition(4, 2)))
    scheduler.update(steps(END, WORD), 0.0)
    scheduler.update(steps(WORD), 0.0)
    assert (ended.finish, cut.finish) == (Finish.END, Finish.LENGTH)


@pytest.mark.parametrize("seed", range(10))
def test_loops_are_those_found_by_full_comparison(seed: int) -> None:
    rng = random.Random(seed)
    rule = Repetition(rng.randint(1, 5), rng.randint(2, 4))
    output: list[int] = []
    for _ in range(400):
        output.append(rng.choice((5, 5, 6)))
        loops = any(output[-size * rule.times :] == output[-size:] * rule.times for size in range(1, rule.tokens + 1))
        assert rule.ends(output) is loops
