"""Warm-up: runs every shape that calls will need, so that no caller pays for the first run of one."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, cycle, islice, zip_longest

from dragoman.bundle.manifest import Manifest
from dragoman.service.engine.cache import ladder
from dragoman.service.engine.memory_budget import MemoryBudget
from dragoman.service.engine.runner import MemoryRefusedError, RowInput, Runner
from dragoman.service.engine.scheduler import BatchLimits

Source = Sequence[int]


def warm_up(
    runner: Runner,
    sources: Sequence[Source],
    manifest: Manifest,
    limits: BatchLimits,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    budget: MemoryBudget | None = None,
) -> bool:
    """Run each capacity of the caches with 1, 2, 4, ... rows, up to `limits`, from the smallest capacity on.

    Batches beyond `budget` are left out, as calls never run them. Sources of every length are cut from the tokens of
    `sources`. Returns False if shapes are left: `seconds` had passed, or memory was refused.
    """
    end = clock() + seconds
    try:
        for run in _runs(runner, sources, manifest, limits, budget):
            if clock() >= end:
                return False
            run()
        return True
    except MemoryRefusedError:
        return False
    finally:
        # Rest first: the rows cleared after it are small, and the others were never touched.
        runner.rest()
        for row in range(limits.rows):
            runner.clear_row(row)


def _runs(
    runner: Runner, sources: Sequence[Source], manifest: Manifest, limits: BatchLimits, budget: MemoryBudget | None
) -> Iterator[Callable[[], object]]:
    """All runs, in order."""
    if not any(sources):
        return
    rules = manifest.decoding
    longest = rules.prompt_tokens - 1 + rules.max_output_tokens
    inputs = [min(width, rules.max_source_tokens) for width in ladder(rules.max_source_tokens)]
    if not manifest.translates:
        yield from (partial(runner.embed, [_source(sources, width)]) for width in inputs)
        return
    outputs = [min(capacity, longest) for capacity in ladder(longest)]
    for width, positions in _pairs(inputs, outputs):
        source = _source(sources, width)
        most = max(1, min(limits.rows, limits.tokens // (width + positions)))
        while most > 1 and budget is not None and not budget.holds(most, width, positions):
            most -= 1
        together = max(1, limits.encode_tokens // width)
        # As many rows as calls encode together. The decoder runs alike on whatever the other rows hold.
        for first_row in range(0, most if width == inputs[0] else 1, together):
            yield partial(runner.insert, [source] * min(together, most - first_row), first_row)
        fed = RowInput(rules.start_id, positions - 1)
        for rows in _sizes(most):
            yield partial(runner.step, [fed] * rows)


def _pairs(inputs: Sequence[int], outputs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of both in order; the last of the shorter one is repeated."""
    for width, positions in zip_longest(inputs, outputs):
        yield width or inputs[-1], positions or outputs[-1]


def _sizes(most: int) -> list[int]:
    """`most` and the powers of 2 below it, the largest first."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))}, reverse=True)


def _source(sources: Sequence[Source], tokens: int) -> tuple[int, ...]:
    """A source of `tokens` tokens, cut from `sources` end to end."""
    return tuple(islice(cycle(chain.from_iterable(sources)), tokens))
