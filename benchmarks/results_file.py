"""Results file of the benchmarks, and its Markdown tables, which docs/benchmarks.md quotes.

    benchmarks/results/latest.json    one section per command: "ratios", "sentences", "served"
    benchmarks/results/latest.md      generated from latest.json

Each command replaces its own section and the section's entry under "conditions"; the other sections stay.
`python -m benchmarks.results_file` regenerates the Markdown and its quote in docs/benchmarks.md.
"""

import json
import platform
import subprocess
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path("benchmarks/results")
JSON_FILE = "latest.json"
MARKDOWN_FILE = "latest.md"

PAGE = Path("docs/benchmarks.md")
PAGE_COLUMNS = 100
QUOTE_BEGINS = "<!-- benchmarks/results/latest.md -->\n"
QUOTE_ENDS = "<!-- end of benchmarks/results/latest.md -->\n"
"""Lines of the page between which the tables are quoted."""

PEERS = {"ctranslate2": "CTranslate2", "transformers": "transformers", "optimum": "optimum-onnx"}
"""Display names of the peers by their names in the file, in the order of the table's columns."""

Row = Mapping[str, Any]


def conditions(command: str, distributions: Iterable[str], rounds: int) -> dict[str, Any]:
    """Command, date, commit, processor and package versions of a measurement; to be read before the file is written."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "rounds": rounds,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in distributions}},
    }


def save(folder: Path, section: str, figures: object, measured_on: Mapping[str, Any]) -> str:
    """Replace one section of the JSON file and rewrite the Markdown file; returns the Markdown."""
    path = folder / JSON_FILE
    results: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"conditions": {}}
    results["conditions"][section] = dict(measured_on)
    results[section] = figures
    markdown = as_markdown(results)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (folder / MARKDOWN_FILE).write_text(markdown, encoding="utf-8")
    return markdown


def as_markdown(results: Mapping[str, Any]) -> str:
    """One table per section of the results, followed by its conditions."""
    tables: dict[str, Callable[[Any], str]] = {
        "ratios": ratios_table,
        "sentences": sentences_table,
        "served": served_table,
    }
    parts = [
        table(results[section]) + "\n\n" + _conditions_line(results["conditions"][section])
        for section, table in tables.items()
        if section in results
    ]
    return "\n\n".join(parts) + "\n"


def quote(page: str, markdown: str) -> str:
    """Page with its quoted tables replaced by `markdown`. Raises ValueError if it lacks the two marker lines."""
    head, begins, rest = page.partition(QUOTE_BEGINS)
    _, ends, tail = rest.partition(QUOTE_ENDS)
    if not begins or not ends:
        raise ValueError(f"the page must hold the lines {QUOTE_BEGINS.strip()} and {QUOTE_ENDS.strip()}")
    return f"{head}{begins}\n{markdown}\n{ends}{tail}"


def ratios_table(rows: Sequence[Row]) -> str:
    """Tokens per second: a line per configuration, and a column per peer with our ratio and the peer's throughput."""
    return _against_peers(rows, ("model", "precision", "threads", "batch"), "tokens")


def sentences_table(rows: Sequence[Row]) -> str:
    """Sentences per second, in the columns of `ratios_table`."""
    return _against_peers(rows, ("model", "precision", "threads"), "sentences")


def served_table(served: Mapping[str, Any]) -> str:
    """Sentences per second by number of clients, and the latency of one word behind long texts."""
    lines = [
        *_header(("clients", "sentences/s over gRPC", "CTranslate2 offline", "ratio"), words=0),
        *(
            f"| {row['clients']} | {row['sentences_per_second']:,.1f} | {row['peer_sentences_per_second']:,.1f} "
            f"| {row['ratio']:.2f} |"
            for row in served["rates"]
        ),
    ]
    word = served["one_word"]
    sentence = (
        f"One word takes {word['idle_seconds'] * 1000:.1f} ms on an idle server, and {word['busy_seconds'] * 1000:.1f} "
        f"ms when it joins {word['long_texts']} long texts: {word['more_steps']:.1f} steps more "
        f"(of {word['step_seconds'] * 1000:.1f} ms)."
    )
    return "\n".join(lines) + "\n\n" + _wrapped(sentence)


def _against_peers(rows: Sequence[Row], keys: Sequence[str], unit: str) -> str:
    peers = [name for name in PEERS if any(row["peer"] == name for row in rows)]
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(tuple(row[key] for key in keys), {})[row["peer"]] = row
    table = _header((*keys, f"{unit}/s", *(f"over {PEERS[name]}" for name in peers)), words=2)
    for line, found in lines.items():
        ours = next(iter(found.values()))[f"{unit}_per_second"]
        cells = [_peer_cell(found.get(name), unit) for name in peers]
        table.append(f"| {' | '.join(map(str, line))} | {ours:,.0f} | {' | '.join(cells)} |")
    return "\n".join(table)


def _peer_cell(row: Row | None, unit: str) -> str:
    if row is None:
        return "–"
    return f"{row['ratio']:.2f} ({row[f'peer_{unit}_per_second']:,.0f})"


def _header(columns: Sequence[str], words: int) -> list[str]:
    """Table header; the first `words` columns hold words, the others right-aligned numbers."""
    rules = ["---" if index < words else "---:" for index in range(len(columns))]
    return [f"| {' | '.join(columns)} |", f"| {' | '.join(rules)} |"]


def _conditions_line(measured_on: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in measured_on["versions"].items())
    return _wrapped(
        f"`{measured_on['command']}`, {measured_on['date'][:10]}, commit {measured_on['commit']}, "
        f"{measured_on['processor']}, {versions}; medians of {measured_on['rounds']} rounds."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, PAGE_COLUMNS, break_long_words=False, break_on_hyphens=False)


def _commit() -> str:
    """Short hash of the commit, marked if the source tree outside the results is altered."""
    commit = _git("rev-parse", "--short", "HEAD")
    altered = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{FOLDER}")
    return f"{commit}, altered" if altered else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    latest = as_markdown(json.loads((FOLDER / JSON_FILE).read_bytes()))
    (FOLDER / MARKDOWN_FILE).write_text(latest, encoding="utf-8")
    PAGE.write_text(quote(PAGE.read_text(encoding="utf-8"), latest), encoding="utf-8")
