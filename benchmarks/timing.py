"""Contenders that take turns, and what their times come to."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
"""A median of fewer is none."""

REST_SECONDS = 0.2
"""Between two contenders, so that threads of the one that spin do not slow the other."""


@dataclass(frozen=True)
class Speed:
    """How fast something ran, in whatever it was asked to count."""

    per_second: float
    """By the median of the times."""
    spread: float
    """(longest time - shortest time) / median."""


def speed(seconds: Sequence[float], work: float) -> Speed:
    """What several runs over the same `work` (tokens, sentences) come to. Raises ValueError where there are none."""
    if not seconds:
        raise ValueError("seconds must hold at least one time, is empty")
    median = statistics.median(seconds)
    return Speed(round(work / median, 1), round((max(seconds) - min(seconds)) / median, 3))


def ratio(ours: Speed, theirs: Speed) -> float:
    """How many times as fast as theirs ours is."""
    return round(ours.per_second / theirs.per_second, 3)


def take_turns(
    contenders: Mapping[Name, Callable[[], object]], rounds: int, rest_seconds: float = REST_SECONDS
) -> dict[Name, list[float]]:
    """The seconds of each contender in each round: all run once a round, each round in the other direction."""
    seconds: dict[Name, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in order:
            time.sleep(rest_seconds)
            started = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds
