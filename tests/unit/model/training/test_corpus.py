import lzma
from pathlib import Path

import pytest

from dragoman.model.training.corpus import Batch, EncodedPair, Pair, epoch_batches, keep_trainable, read_pairs

GOOD = "toy\tA kite.\tUn cerf-volant.\n"


def encoded(domain: str, source: int, target: int, mark: int = 7) -> EncodedPair:
    """A pair of `source` and `target` tokens."""
    return EncodedPair(domain, [mark] * source, [mark] * target)


def corpus(count: int = 400) -> list[EncodedPair]:
    return [
        encoded("ab"[number % 2], 1 + number * 7 % 20, 1 + number * 11 % 20, mark=number) for number in range(count)
    ]


def times(batches: list[Batch], domain: str) -> int:
    return sum(pair.domain == domain for batch in batches for pair in batch)


# --- reading


def test_lines_become_pairs_in_order(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tÉté \t 夏\nb\tx\u2028y\tz", encoding="utf-8")
    assert read_pairs(path) == [Pair("a", "Été ", " 夏"), Pair("b", "x\u2028y", "z")]


def test_windows_line_ends_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\tx\ty\r\nb\tx\ty\r\n")
    assert [pair.target for pair in read_pairs(path)] == ["y", "y"]


def test_xz_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.xz"
    path.write_bytes(lzma.compress((GOOD * 3).encode()))
    assert read_pairs(path) == [Pair("toy", "A kite.", "Un cerf-volant.")] * 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one column", r"must have 3 columns \(domain, source, target\) separated by tabs, has 1"),
        ("toy\tA kite.", "must have 3 columns .*, has 2"),
        ("toy\tA\tkite.\tUn", "must have 3 columns .*, has 4"),
        ("", "must have 3 columns .*, has 1"),
        ("\tA kite.\tUn", "the domain is blank"),
        ("toy\t \tUn", "the source is blank"),
        ("toy\tA kite.\t", "the target is blank"),
        ("toy\tA kite.\t\u00a0", "the target is blank"),
        ("toy\tA kite.\tUn\udcff", "not UTF-8: invalid start byte at byte 14"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes((GOOD * 2 + line + "\n" + GOOD).encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"pairs\.tsv:3: {message}"):
        read_pairs(path)


def test_a_bad_line_in_an_xz_file_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.xz"
    path.write_bytes(lzma.compress((GOOD + "bad\n").encode()))
    with pytest.raises(ValueError, match=r"pairs\.tsv\.xz:2: must have 3 columns"):
        read_pairs(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"pairs\.tsv: contains no sentence pairs"):
        read_pairs(path)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_an_invalid_xz_file_is_refused(tmp_path: Path, part: float) -> None:
    path = tmp_path / "pairs.tsv.xz"
    packed = lzma.compress((GOOD * 50).encode())
    path.write_bytes(packed[: int(len(packed) * part)] or GOOD.encode())
    with pytest.raises(ValueError, match=r"pairs\.tsv\.xz: not a complete \.xz file"):
        read_pairs(path)


# --- sampling


def test_overlong_and_uneven_pairs_are_dropped() -> None:
    fit = [encoded("a", 10, 10), encoded("a", 1, 10), encoded("a", 8, 2), encoded("a", 2, 10)]
    unfit = [encoded("a", 11, 5), encoded("a", 5, 11), encoded("a", 1, 13), encoded("a", 17, 2)]
    assert keep_trainable([*fit, *unfit], max_tokens=10) == fit
    assert keep_trainable([encoded("a", 1, 12), encoded("a", 1, 13)], max_tokens=50) == [encoded("a", 1, 12)]
    assert keep_trainable([encoded("a", 16, 2), encoded("a", 17, 2)], max_tokens=50) == [encoded("a", 16, 2)]


def test_an_epoch_is_deterministic_in_its_arguments() -> None:
    def batches(seed: int, epoch: int) -> list[Batch]:
        return epoch_batches(corpus(), {"a": 1.5}, 100, seed, epoch)

    assert batches(1, 0) == batches(1, 0)
    assert batches(1, 0) != batches(2, 0)
    assert batches(1, 0) != batches(1, 1)
    # Not only the order of batches differs: a pair has other batch-mates in each epoch.
    assert {tuple(pair.source) for pair in batches(1, 0)[0]} not in [
        {tuple(pair.source) for pair in batch} for batch in batches(1, 1)
    ]


def test_without_shares_each_pair_occurs_once() -> None:
    pairs = corpus()
    found = [pair for batch in epoch_batches(pairs, {}, 100, seed=1, epoch=0) for pair in batch]
    assert sorted(map(repr, found)) == sorted(map(repr, pairs))


@pytest.mark.parametrize("budget", [20, 64, 1000])
def test_no_batch_exceeds_its_budget_including_padding(budget: int) -> None:
    batches = epoch_batches(corpus(), {"b": 2.0}, budget, seed=3, epoch=2)
    for batch in batches:
        longest = max(max(len(pair.source), len(pair.target)) for pair in batch)
        assert longest * len(batch) <= budget


def test_a_pair_above_the_budget_is_a_batch_of_its_own() -> None:
    batches = epoch_batches([encoded("a", 3, 30), encoded("a", 3, 3), encoded("a", 3, 3)], {}, 10, seed=1, epoch=0)
    assert sorted(len(batch) for batch in batches) == [1, 2]


def test_a_batch_has_pairs_of_similar_length() -> None:
    for batch in epoch_batches(corpus(), {}, 60, seed=1, epoch=0):
        lengths = [len(pair.target) for pair in batch]
        assert max(lengths) - min(lengths) <= 3


def test_shares_hold_roughly_per_epoch_and_on_average() -> None:
    shares = {"a": 2.5, "b": 0.25}
    counts = [
        (times(batches, "a"), times(batches, "b"))
        for batches in (epoch_batches(corpus(), shares, 100, seed=1, epoch=epoch) for epoch in range(20))
    ]
    assert all(400 <= a <= 600 and 0 < b < 100 for a, b in counts)
    assert sum(a for a, _ in counts) / 20 == pytest.approx(500, rel=0.02)
    assert sum(b for _, b in counts) / 20 == pytest.approx(50, rel=0.1)


def test_integer_shares_hold_exactly() -> None:
    batches = epoch_batches(corpus(), {"a": 0.0, "b": 3.0}, 100, seed=1, epoch=0)
    assert (times(batches, "a"), times(batches, "b")) == (0, 600)
