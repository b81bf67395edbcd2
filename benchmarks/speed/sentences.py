"""Sentences per second compared with the peers: the shipped model on the test sentences, with its stopping rules.

    make bench

Contenders translate from token ids to token ids, so tokenizers are excluded. All are greedy, sort by length and run at
most 32 sentences at a time. The engine admits the next sentence when one ends; the peers fill batches. Tokens are
compared first: in float32, each contender must produce the reference decoder's tokens, up to a row's first step that
float noise may decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks.measured_models import Measured, shipped
from benchmarks.options import comparison_options, finish
from benchmarks.speed.contenders import comparisons_of, prepare_ours, prepare_peers
from benchmarks.speed.reference import check_all, equal_rows, reference
from benchmarks.timing import ratio, speed, take_turns
from dragoman.bundle.precision import Precision
from dragoman.model.training.corpus import read_pairs

DATA = Path("benchmarks/data/tatoeba.tsv")


@dataclass(frozen=True)
class Sentences:
    """One row of the section "sentences"."""

    model: str
    precision: Precision
    threads: int
    peer: str
    peer_precision: Precision
    sentences: int
    sentences_per_second: float
    spread: float
    peer_sentences_per_second: float
    peer_spread: float
    ratio: float
    equal_rows: int
    """Sentences with identical tokens on both sides."""


@click.command()
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="Sentences of the file.")
@comparison_options
def main(
    data: Path,
    sentences: int,
    peers: Sequence[str],
    threads: Sequence[int],
    rounds: int,
    work: Path,
    output: Path,
) -> None:
    """Measure, and replace the section "sentences" of OUTPUT/latest.json. About 10 minutes on two quiet cores."""
    measured = shipped()
    if measured.tokenizer is None:
        raise click.ClickException(f"{measured.name} has no tokenizer")
    sources = [measured.tokenizer.encode(pair.source) for pair in read_pairs(data)[:sentences]]
    rows = list(race_all(measured, sources, peers, threads, rounds, work / f"{measured.name}-sentences"))
    finish(output, "sentences", [asdict(row) for row in rows], "make bench", rounds)


def race_all(
    measured: Measured,
    sources: Sequence[Sequence[int]],
    peers: Sequence[str],
    threads: Sequence[int],
    rounds: int,
    folder: Path,
) -> Iterator[Sentences]:
    """Run every comparison at every number of threads; exports go into `folder`."""
    max_tokens = measured.rules.max_output_tokens
    expected = reference(measured.model, measured.rules, sources, max_tokens)
    theirs = prepare_peers(peers, folder, measured.model, measured.rules)
    openers = theirs | prepare_ours(folder, measured.model, measured.rules)
    for count in threads:
        contenders = {key: opener(count) for key, opener in openers.items()}
        found = {key: contender.outputs(sources, max_tokens) for key, contender in contenders.items()}
        check_all(found, expected, f"{measured.name}, {count} threads")
        runs = {key: partial(contender.outputs, sources, max_tokens) for key, contender in contenders.items()}
        speeds = {key: speed(times, len(sources)) for key, times in take_turns(runs, rounds).items()}
        for comparison in comparisons_of(theirs):
            ours, peer = speeds[comparison.ours], speeds[comparison.theirs]
            yield Sentences(
                model=measured.name,
                precision=comparison.precision,
                threads=count,
                peer=comparison.peer,
                peer_precision=comparison.peer_precision,
                sentences=len(sources),
                sentences_per_second=ours.per_second,
                spread=ours.spread,
                peer_sentences_per_second=peer.per_second,
                peer_spread=peer.spread,
                ratio=ratio(ours, peer),
                equal_rows=equal_rows(found[comparison.ours], found[comparison.theirs]),
            )


if __name__ == "__main__":
    main()
