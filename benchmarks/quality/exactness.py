"""Exactness: the answer of each sentence decoded alone, compared with its answer in random batches.

    python -m benchmarks.quality.exactness BUNDLE --data TEST.tsv

Both sides run on the serving engine. An engine of one row decodes each sentence alone. In an engine of several rows,
sentences arrive in random order and in bursts of random size, and join and leave while others run. Tokens are compared,
and scores to the last bit. Exits with status 1 if tokens differ.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.bundle_engine import open_engine
from dragoman.bundle.manifest import TOKENIZER_FOLDER, open_bundle
from dragoman.bundle.tokenizers import cut, open_tokenizer
from dragoman.model.training.corpus import read_pairs
from dragoman.service.engine.offline import Offline
from dragoman.service.engine.sequence import Sequence as Text


@dataclass(frozen=True)
class Answer:
    """Result of one sentence."""

    tokens: tuple[int, ...]
    score: float
    """Sum of the tokens' log-probabilities."""


@dataclass(frozen=True)
class Counts:
    """Number of answers that equal those decoded alone."""

    compared: int
    tokens: int
    """Answers with equal tokens."""
    bits: int
    """Answers with equal tokens and bit-equal scores."""


def alone(engine: Offline, sources: Sequence[Sequence[int]]) -> list[Answer]:
    """Decode `sources` in an engine of one row."""
    return [_answer(text) for text in engine.run(sources)]


def among_others(engine: Offline, sources: Sequence[Sequence[int]], rows: int, seed: int) -> list[Answer]:
    """Decode `sources` in an engine of `rows` rows, in random bursts while others run."""
    rng = random.Random(seed)
    permits = threading.Semaphore(2 * rows)
    texts: dict[int, Text] = {}
    for burst in bursts(len(sources), 2 * rows, rng):
        for _ in burst:
            permits.acquire()
        submitted = engine.submit([sources[index] for index in burst], None, lambda _text: permits.release())
        texts |= dict(zip(burst, submitted, strict=True))
    for _ in range(2 * rows):  # all permits returned: the engine is idle
        permits.acquire()
    return [_answer(texts[index]) for index in range(len(sources))]


def bursts(count: int, max_size: int, rng: random.Random) -> Iterator[list[int]]:
    """Random permutation of the numbers below `count`, in bursts of 1 to `max_size`."""
    order = list(range(count))
    rng.shuffle(order)
    while order:
        size = rng.randint(1, max_size)
        yield order[:size]
        del order[:size]


def compare(expected: Sequence[Answer], actual: Sequence[Answer]) -> Counts:
    """Count equal answers."""
    pairs = list(zip(expected, actual, strict=True))
    tokens = sum(one.tokens == other.tokens for one, other in pairs)
    return Counts(len(pairs), tokens, sum(one == other for one, other in pairs))


def _answer(text: Text) -> Answer:
    if text.error is not None:
        raise text.error
    return Answer(tuple(text.tokens), text.log_prob)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--sentences", type=click.IntRange(1), help="Sentences of the file. Default: all.")
@click.option("--rows", type=click.IntRange(2), multiple=True, default=(3, 32), show_default=True)
@click.option(
    "--orders", type=click.IntRange(1), default=2, show_default=True, help="Random orders per number of rows."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(bundle: Path, data: Path, sentences: int | None, rows: Sequence[int], orders: int, threads: int) -> None:
    """Count the sentences of the file with the same answer alone and in batches.

    5,000 sentences take about 10 minutes with one thread.
    """
    opened = open_bundle(bundle)
    tokenizer = open_tokenizer(opened.path(TOKENIZER_FOLDER))
    max_tokens = opened.manifest.decoding.max_source_tokens
    sources = [cut(tokenizer.encode(pair.source), max_tokens) for pair in read_pairs(data)[:sentences]]
    started = time.monotonic()
    with open_engine(opened, threads=threads, rows=1) as engine:
        expected = alone(engine, sources)
    click.echo(f"{opened.manifest.precision}: {len(sources)} sentences alone in {time.monotonic() - started:.0f} s")
    different = 0
    for count in rows:
        with open_engine(opened, threads=threads, rows=count) as engine:
            for order in range(orders):
                counts = compare(expected, among_others(engine, sources, count, seed=order))
                different += counts.compared - counts.tokens
                click.echo(
                    f"{count} rows, order {order}: {counts.tokens} of {counts.compared} with equal tokens, "
                    f"{counts.bits} with bit-equal scores as well"
                )
    if different:
        raise click.ClickException(f"answers that depend on the rest of the batch: {different}")


if __name__ == "__main__":
    main()
