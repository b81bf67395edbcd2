from pathlib import Path

import pytest

from benchmarks.reliability.replacement import Outcome, point


def test_growth_compares_rounds_of_the_same_version() -> None:
    assert Outcome(resident_bytes=[900, 100, 900, 200, 900, 300, 900, 240, 900, 210]).growth == pytest.approx(0.6)
    assert Outcome(resident_bytes=[900, 100]).growth == 0


def test_faults_name_each_exceeded_bound() -> None:
    assert Outcome(resident_bytes=[900, 100, 900, 104]).faults() == []
    outcome = Outcome(failures=["UNAVAILABLE", "INTERNAL"], wrong=3, resident_bytes=[1, 200, 1, 250])
    assert outcome.faults() == [
        "2 calls failed, the first with: UNAVAILABLE",
        "3 answers differ from those of the version they name",
        "memory grew by 25.0%, at most 5% allowed",
    ]


def test_point_replaces_an_existing_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for target in ("a", "b", "a"):
        point(tmp_path / "served", tmp_path / target)
        assert (tmp_path / "served").resolve() == tmp_path / target
