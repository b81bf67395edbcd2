import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    table = PAGE.partition("| to change | go to |\n")[2].partition("\n\n")[0]
    return [re.findall(r"`([^`]+)`", line.split("|")[2]) for line in table.splitlines()[1:]]


def test_each_row_names_files_that_exist() -> None:
    assert len(rows()) >= 20
    for places in rows():
        paths = [place for place in places if "/" in place]
        assert paths
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_make_target_of_the_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", PAGE)) <= targets
