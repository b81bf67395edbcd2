"""Does a text's answer depend on its batch-mates? Every sentence alone against itself among random others.

    python -m benchmarks.quality.exactness BUNDLE --data TEST.tsv

All of it goes through the serving engine: first with one row, so that each sentence runs alone, then with several,
where sentences come in bursts of random sizes and a random order, and join and leave while others run. Tokens are
compared, and scores to the last bit. Ends with status 1 where tokens differ.
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
    """What became of one sentence."""

    tokens: tuple[int, ...]
    score: float
    """Sum of its tokens' log-probabilities."""


@dataclass(frozen=True)
class Counts:
    """How many answers are as they were alone."""

    compared: int
    tokens: int
    """With equal tokens."""
    bits: int
    """With equal tokens, and a score that is equal to the last bit."""


def alone(engine: Offline, sources: Sequence[Sequence[int]]) -> list[Answer]:
    """Answers of an engine of one row."""
    return [_answer(text) for text in engine.run(sources)]


def among_others(engine: Offline, sources: Sequence[Sequence[int]], rows: int, seed: int) -> list[Answer]:
    """Answers of an engine of `rows` rows, whose sentences come in bursts while others run."""
    rng = random.Random(seed)
    room = threading.Semaphore(2 * rows)
    texts: dict[int, Text] = {}
    for burst in bursts(len(sources), 2 * rows, rng):
        for _ in burst:
            room.acquire()
        submitted = engine.submit([sources[index] for index in burst], None, lambda _text: room.release())
        texts |= dict(zip(burst, submitted, strict=True))
    for _ in range(2 * rows):  # all the room there is: nothing runs any more
        room.acquire()
    return [_answer(texts[index]) for index in range(len(sources))]


def bursts(count: int, largest: int, rng: random.Random) -> Iterator[list[int]]:
    """The numbers below `count` in a random order, at most `largest` at a time."""
    order = list(range(count))
    rng.shuffle(order)
    while order:
        size = rng.randint(1, largest)
        yield order[:size]
        del order[:size]


def compare(right: Sequence[Answer], found: Sequence[Answer]) -> Counts:
    """Count what is equal."""
    pairs = list(zip(right, found, strict=True))
    tokens = sum(one.tokens == other.tokens for one, other in pairs)
    return Counts(len(pairs), tokens, sum(one == other for one, other in pairs))


def _answer(text: Text) -> Answer:
    if text.error is not None:
        raise text.error
    return Answer(tuple(text.tokens), text.log_prob)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--sentences", type=click.IntRange(1), help="How many of the file; all if not given.")
@click.option("--rows", type=click.IntRange(2), multiple=True, default=(3, 32), show_default=True)
@click.option(
    "--orders", type=click.IntRange(1), default=2, show_default=True, help="Random orders, for each of --rows."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(bundle: Path, data: Path, sentences: int | None, rows: Sequence[int], orders: int, threads: int) -> None:
    """Print how many sentences of the file have the same answer alone and among others.

    5,000 sentences take about 10 minutes with one thread.
    """
    opened = open_bundle(bundle)
    tokenizer = open_tokenizer(opened.path(TOKENIZER_FOLDER))
    longest = opened.manifest.decoding.max_source_tokens
    sources = [cut(tokenizer.encode(pair.source), longest) for pair in read_pairs(data)[:sentences]]
    started = time.monotonic()
    with open_engine(opened, threads=threads, rows=1) as engine:
        right = alone(engine, sources)
    click.echo(f"{opened.manifest.precision}: {len(sources)} sentences alone in {time.monotonic() - started:.0f} s")
    differ = 0
    for count in rows:
        with open_engine(opened, threads=threads, rows=count) as engine:
            for order in range(orders):
                counts = compare(right, among_others(engine, sources, count, seed=order))
                differ += counts.compared - counts.tokens
                click.echo(
                    f"{count} rows, order {order}: {counts.tokens} of {counts.compared} with equal tokens, "
                    f"{counts.bits} with bit-equal scores too"
                )
    if differ:
        raise click.ClickException(f"answers that depend on their batch-mates: {differ}")


if __name__ == "__main__":
    main()
