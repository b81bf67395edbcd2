import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results_file import FOLDER, JSON_FILE, MARKDOWN_FILE, PAGE, as_markdown, conditions, quote, save

ROOT = Path(__file__).parents[3]

MEASURED_ON = {
    "command": "make bench",
    "date": "2026-11-29T18:00:00+00:00",
    "commit": "abc1234",
    "processor": "Some Processor",
    "rounds": 5,
    "versions": {"python": "3.11.7", "onnxruntime": "1.32.0"},
}


def race(peer: str, batch: int = 8, precision: str = "int8") -> dict[str, Any]:
    return {
        "model": "en-fr",
        "precision": precision,
        "batch": batch,
        "threads": 2,
        "peer": peer,
        "tokens_per_second": 1500.4,
        "peer_tokens_per_second": 1000.0,
        "ratio": 1.5,
    }


SERVED = {
    "rates": [
        {"clients": 32, "sentences_per_second": 90.06, "peer_sentences_per_second": 100.0, "ratio": 0.901},
    ],
    "one_word": {
        "long_texts": 32,
        "idle_seconds": 0.01,
        "busy_seconds": 0.035,
        "step_seconds": 0.01,
        "more_steps": 2.5,
    },
}


def test_save_replaces_its_section_and_keeps_the_others(tmp_path: Path) -> None:
    save(tmp_path, "ratios", [race("ctranslate2")], MEASURED_ON)
    save(tmp_path, "served", SERVED, MEASURED_ON | {"commit": "older"})
    save(tmp_path, "served", SERVED, MEASURED_ON | {"commit": "newer"})
    results = json.loads((tmp_path / JSON_FILE).read_text())
    assert results["ratios"] == [race("ctranslate2")]
    assert results["served"] == SERVED
    assert results["conditions"]["ratios"]["commit"] == "abc1234"
    assert results["conditions"]["served"]["commit"] == "newer"


def test_save_rewrites_the_markdown_from_all_sections(tmp_path: Path) -> None:
    save(tmp_path, "served", SERVED, MEASURED_ON)
    markdown = save(tmp_path, "ratios", [race("ctranslate2")], MEASURED_ON)
    assert (tmp_path / MARKDOWN_FILE).read_text() == markdown
    assert markdown == as_markdown(json.loads((tmp_path / JSON_FILE).read_text()))
    assert markdown.index("over CTranslate2") < markdown.index("over gRPC")


def test_each_peer_is_a_column_with_a_dash_without_data() -> None:
    rows = [race("ctranslate2"), race("transformers"), race("ctranslate2", precision="float32")]
    table = as_markdown({"ratios": rows, "conditions": {"ratios": MEASURED_ON}}).splitlines()
    assert table[:4] == [
        "| model | precision | threads | batch | tokens/s | over CTranslate2 | over transformers |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        "| en-fr | int8 | 2 | 8 | 1,500 | 1.50 (1,000) | 1.50 (1,000) |",
        "| en-fr | float32 | 2 | 8 | 1,500 | 1.50 (1,000) | – |",
    ]


def test_conditions_follow_the_table_in_100_columns() -> None:
    page = as_markdown({"ratios": [race("ctranslate2")], "conditions": {"ratios": MEASURED_ON}})
    assert page.endswith(
        "`make bench`, 2026-11-29, commit abc1234, Some Processor, python 3.11.7, onnxruntime 1.32.0; "
        "medians\nof 5 rounds.\n"
    )


def test_the_latency_of_one_word_is_given_in_steps() -> None:
    page = as_markdown({"served": SERVED, "conditions": {"served": MEASURED_ON}})
    assert "| 32 | 90.1 | 100.0 | 0.90 |" in page
    assert (
        "One word takes 10.0 ms on an idle server, and 35.0 ms when it joins 32 long texts: 2.5 steps more "
        "(of 10.0 ms)." in " ".join(page.split())
    )


def test_conditions_name_commit_processor_versions_and_date() -> None:
    found = conditions("make bench", ["numpy"], rounds=5)
    assert set(found) == {"command", "date", "commit", "processor", "rounds", "versions"}
    assert set(found["versions"]) == {"python", "numpy"}
    assert all(found.values())


def test_quote_replaces_the_tables_between_the_marker_lines() -> None:
    page = (ROOT / PAGE).read_text()
    once = quote(page, "| a table |\n")
    assert "| a table |" in once
    twice = quote(once, "| another |\n")
    assert "| a table |" not in twice
    assert quote(twice, "| a table |\n") == once


def test_quote_requires_the_marker_lines() -> None:
    with pytest.raises(ValueError, match="must hold the lines"):
        quote("# A page\n", "| a table |\n")


class TestCommittedResults:
    @pytest.fixture
    def markdown(self) -> str:
        path = ROOT / FOLDER / MARKDOWN_FILE
        if not path.exists():
            pytest.skip("no results are committed yet")
        return path.read_text()

    def test_the_markdown_matches_the_json_file(self, markdown: str) -> None:
        assert as_markdown(json.loads((ROOT / FOLDER / JSON_FILE).read_text())) == markdown

    def test_the_page_quotes_the_markdown(self, markdown: str) -> None:
        page = (ROOT / PAGE).read_text()
        assert quote(page, markdown) == page, "run: python -m benchmarks.results_file"
