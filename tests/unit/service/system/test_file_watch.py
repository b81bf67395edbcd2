"""Change detection and reloading of files."""

import logging
from pathlib import Path

import pytest

from dragoman.service.system.file_watch import WatchedFiles, file_stamp, folder_stamp


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def test_a_stamp_changes_with_a_replacement_of_equal_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    before = file_stamp(path)
    assert file_stamp(path) == before
    replace(path, "two")
    assert file_stamp(path) != before
    path.unlink()
    assert file_stamp(path) is None


def test_a_folder_stamp_has_all_files_below_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b").write_text("b")
    (tmp_path / "a").write_text("a")
    assert [name for name, _ in folder_stamp(tmp_path)] == ["a", "inner/b"]
    assert folder_stamp(tmp_path / "nowhere") == ()


def test_a_change_is_reloaded_and_a_bad_one_refused_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    watched = WatchedFiles("numbers", [path], lambda: int(path.read_text()))
    with caplog.at_level(logging.ERROR):
        replace(path, "none")
        assert [watched.current(), watched.current()] == [1, 1]
    assert len(caplog.records) == 1
    assert "could not reload numbers; keeping the previous version: " in caplog.text
    replace(path, "2")
    assert watched.current() == 2
