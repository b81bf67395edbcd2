"""Sentence pairs: reading them from TSV, sampling an epoch, and splitting it into batches."""

import lzma
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Pair:
    """One line of a corpus."""

    domain: str
    source: str
    target: str


@dataclass(frozen=True)
class EncodedPair:
    """A pair as token ids, each side with its end token."""

    domain: str
    source: Sequence[int]
    target: Sequence[int]


Batch = list[EncodedPair]


def read_pairs(path: Path) -> list[Pair]:
    """Read UTF-8 lines of domain, source and target, separated by tabs; a file ending in .xz is decompressed.

    Raises ValueError with the file, the line number and the fault of the first bad line.
    """
    try:
        with _open(path) as lines:
            pairs = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path}: not a complete .xz file: {error}") from error
    if not pairs:
        raise ValueError(f"{path}: contains no sentence pairs")
    return pairs


def _open(path: Path) -> IO[bytes]:
    return lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb")


def _parse(line: bytes, where: str) -> Pair:
    try:
        columns = line.decode("utf-8").rstrip("\r\n").split("\t")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from error
    if len(columns) != 3:
        raise ValueError(f"{where}: must have 3 columns (domain, source, target) separated by tabs, has {len(columns)}")
    for name, value in zip(("domain", "source", "target"), columns, strict=True):
        if not value.strip():
            raise ValueError(f"{where}: the {name} is blank")
    return Pair(*columns)


def keep_trainable(pairs: Iterable[EncodedPair], max_tokens: int) -> list[EncodedPair]:
    """Drop pairs with more than `max_tokens` on a side, or with one side more than about four times the other."""
    return [
        pair
        for pair in pairs
        if max(len(pair.source), len(pair.target)) <= max_tokens
        and len(pair.source) <= 4 * len(pair.target) + 8
        and len(pair.target) <= 4 * len(pair.source) + 8
    ]


def epoch_batches(
    pairs: Sequence[EncodedPair], shares: Mapping[str, float], token_budget: int, seed: int, epoch: int
) -> list[Batch]:
    """The batches of one epoch, deterministic in the arguments, so that training can resume within an epoch.

    A pair of a domain with share 2.5 occurs two or three times, one with share 0.5 in every other epoch; the default
    share is 1. A batch has pairs of similar length, and at most `token_budget` padded tokens on either side, unless it
    is a single pair.
    """
    rng = random.Random(f"{seed}/{epoch}")
    chosen = [pair for pair in pairs for _ in range(_times(shares.get(pair.domain, 1.0), rng))]
    # The random part gives each pair other batch-mates in each epoch.
    chosen.sort(key=lambda pair: (len(pair.target) + rng.random() * 2, len(pair.source)))
    batches = list(_cut(chosen, token_budget))
    rng.shuffle(batches)
    return batches


def _times(share: float, rng: random.Random) -> int:
    return int(share) + (rng.random() < share % 1)


def _cut(pairs: Sequence[EncodedPair], token_budget: int) -> Iterator[Batch]:
    batch: Batch = []
    longest = 0
    for pair in pairs:
        length = max(len(pair.source), len(pair.target))
        if batch and max(longest, length) * (len(batch) + 1) > token_budget:
            yield batch
            batch, longest = [], 0
        batch.append(pair)
        longest = max(longest, length)
    if batch:
        yield batch
