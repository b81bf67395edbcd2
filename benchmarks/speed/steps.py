"""Token throughput compared with the peers: same weights, same threads, same machine, one run, interleaved.

    make bench

Each side decodes the same sources for exactly STEPS tokens, the end token suppressed; ours is the serving engine, run
offline. Figures are medians over several rounds, in each of which every contender runs once. Tokens are compared first:
in float32, each contender must produce the reference decoder's tokens, up to a row's first step that float noise may
decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
from tqdm import tqdm

from benchmarks.measured_models import MODELS, Measured
from benchmarks.options import comparison_options, finish
from benchmarks.speed.contenders import ROWS, Comparison, Key, comparisons_of, prepare_ours, prepare_peers
from benchmarks.speed.reference import agreement, check_all, equal_rows, reference
from benchmarks.timing import Speed, ratio, speed, take_turns
from dragoman.bundle.precision import Precision

STEPS = 32
SOURCE_TOKENS = 25


@dataclass(frozen=True)
class Ratio:
    """One row of the section "ratios"."""

    model: str
    precision: Precision
    batch: int
    threads: int
    peer: str
    peer_precision: Precision
    tokens_per_second: float
    spread: float
    """Spread of the throughput: (longest time - shortest time) / median over the rounds."""
    peer_tokens_per_second: float
    peer_spread: float
    ratio: float
    equal_rows: int
    """Rows of the batch with identical tokens on both sides."""
    equal_tokens: float
    """Share of identical tokens."""


class Benchmark:
    """One model in every exported form, with the reference outputs."""

    def __init__(self, measured: Measured, peers: Sequence[str], folder: Path, largest_batch: int) -> None:
        """Prepare the available `peers` and our bundles in `folder`."""
        self._name = measured.name
        theirs = prepare_peers(peers, folder, measured.model, measured.endless)
        self._openers = theirs | prepare_ours(folder, measured.model, measured.endless)
        self._comparisons = list(comparisons_of(theirs))
        self._sources = random_sources(measured)[:largest_batch]
        self._expected = reference(measured.model, measured.endless, self._sources, STEPS)

    def run(self, threads: int, batches: Sequence[int], rounds: int) -> Iterator[Ratio]:
        """Every comparison at every batch size."""
        contenders = {key: opener(threads) for key, opener in self._openers.items()}
        for batch in tqdm(batches, desc=f"{self._name}, {threads} threads", disable=None):
            sources = self._sources[:batch]
            found = {key: contender.steps(sources, STEPS) for key, contender in contenders.items()}
            check_all(found, self._expected[:batch], f"{self._name}, batch {batch}, {threads} threads")
            runs = {key: partial(contender.steps, sources, STEPS) for key, contender in contenders.items()}
            speeds = {key: speed(times, STEPS * batch) for key, times in take_turns(runs, rounds).items()}
            for comparison in self._comparisons:
                yield self._row(comparison, batch, threads, speeds, found)

    def _row(
        self,
        comparison: Comparison,
        batch: int,
        threads: int,
        speeds: Mapping[Key, Speed],
        found: Mapping[Key, list[list[int]]],
    ) -> Ratio:
        ours, peer = speeds[comparison.ours], speeds[comparison.theirs]
        return Ratio(
            model=self._name,
            precision=comparison.precision,
            batch=batch,
            threads=threads,
            peer=comparison.peer,
            peer_precision=comparison.peer_precision,
            tokens_per_second=ours.per_second,
            spread=ours.spread,
            peer_tokens_per_second=peer.per_second,
            peer_spread=peer.spread,
            ratio=ratio(ours, peer),
            equal_rows=equal_rows(found[comparison.ours], found[comparison.theirs]),
            equal_tokens=agreement(found[comparison.ours], found[comparison.theirs]),
        )


def random_sources(measured: Measured, rows: int = ROWS) -> list[list[int]]:
    """`rows` random sources of SOURCE_TOKENS tokens, end token included; every call gives the same first sources."""
    rng = np.random.default_rng(0)
    body = rng.integers(4, measured.model.config.source_vocabulary, (rows, SOURCE_TOKENS - 1)).tolist()
    return [[*row, measured.rules.end_ids[0]] for row in body]


@click.command()
@click.option("--model", "models", type=click.Choice(list(MODELS)), multiple=True, default=list(MODELS))
@click.option("--batch", "batches", type=click.IntRange(1, ROWS), multiple=True, default=(1, 8, ROWS))
@comparison_options
def main(
    models: Sequence[str],
    batches: Sequence[int],
    peers: Sequence[str],
    threads: Sequence[int],
    rounds: int,
    work: Path,
    output: Path,
) -> None:
    """Measure, and replace the section "ratios" of OUTPUT/latest.json. About 15 minutes on two quiet cores."""
    rows: list[Ratio] = []
    for name in models:
        benchmark = Benchmark(MODELS[name](), peers, work / name, max(batches))
        for count in threads:
            rows += benchmark.run(count, batches, rounds)
    finish(output, "ratios", [asdict(row) for row in rows], "make bench", rounds)
    for row in rows:
        if row.precision == row.peer_precision == "int8":
            click.echo(
                f"{row.model}, batch {row.batch}, {row.threads} threads: int8 agrees with {row.peer} in "
                f"{row.equal_rows} of {row.batch} rows, {row.equal_tokens:.1%} of the tokens"
            )


if __name__ == "__main__":
    main()
