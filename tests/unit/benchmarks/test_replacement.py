from pathlib import Path

import pytest

from benchmarks.reliability.replacement import Seen, point


def test_growth_is_between_times_at_which_the_same_version_is_served() -> None:
    assert Seen(resident_bytes=[900, 100, 900, 200, 900, 300, 900, 240, 900, 210]).growth == pytest.approx(0.6)
    assert Seen(resident_bytes=[900, 100]).growth == 0


def test_what_is_beyond_its_bound_is_named() -> None:
    assert Seen(resident_bytes=[900, 100, 900, 104]).faults() == []
    seen = Seen(failures=["UNAVAILABLE", "INTERNAL"], wrong=3, resident_bytes=[1, 200, 1, 250])
    assert seen.faults() == [
        "2 calls failed, the first with: UNAVAILABLE",
        "3 answers are not those of the version that they name",
        "memory grew by 25.0%, may by 5%",
    ]


def test_a_link_is_turned_without_ever_being_gone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for target in ("a", "b", "a"):
        point(tmp_path / "served", tmp_path / target)
        assert (tmp_path / "served").resolve() == tmp_path / target
