"""Interleaved timing of contenders, and the throughput from their times."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS = 5
"""Fewest rounds for a meaningful median."""

REST_SECONDS = 0.2
"""Pause between two contenders, so that spinning threads of one do not slow the other."""


@dataclass(frozen=True)
class Speed:
    """Throughput, in the caller's unit of work per second."""

    per_second: float
    """Throughput at the median time."""
    spread: float
    """(longest time - shortest time) / median."""


def speed(seconds: Sequence[float], work: float) -> Speed:
    """Throughput of several runs over the same `work` (tokens, sentences). Raises ValueError for an empty `seconds`."""
    if not seconds:
        raise ValueError("seconds must hold at least one time, is empty")
    median = statistics.median(seconds)
    return Speed(round(work / median, 1), round((max(seconds) - min(seconds)) / median, 3))


def ratio(ours: Speed, theirs: Speed) -> float:
    """Our throughput divided by theirs."""
    return round(ours.per_second / theirs.per_second, 3)


def take_turns(
    contenders: Mapping[Name, Callable[[], object]], rounds: int, rest_seconds: float = REST_SECONDS
) -> dict[Name, list[float]]:
    """Seconds per contender and round; each runs once a round, and the order reverses every round."""
    seconds: dict[Name, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in order:
            time.sleep(rest_seconds)
            started = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds
