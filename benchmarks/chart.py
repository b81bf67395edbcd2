"""Chart of the main ratios: tokens per second over CTranslate2, on one thread, by model, precision and batch.

    python -m benchmarks.chart

Reads benchmarks/results/latest.json and writes docs/ratios.svg, which the README shows. The SVG is
written without a library, so that the same figures give the same bytes and a test can check the file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results_file import FOLDER, JSON_FILE

CHART = Path("docs/ratios.svg")

PEER = "ctranslate2"
THREADS = 1

WIDTH = 760
LEFT = 210
RIGHT = 70
TOP = 56
BAR = 16
GAP = 6
GROUP_GAP = 14
BOTTOM = 44
COLOURS = {"float32": "#4c78a8", "int8": "#f58518"}

TITLE = f"Tokens per second relative to CTranslate2 ({THREADS} thread; 1 = equal)"


@dataclass(frozen=True)
class Bar:
    """One ratio of the chart."""

    model: str
    precision: str
    batch: int
    ratio: float


def bars(results: Mapping[str, Any]) -> list[Bar]:
    """Ratios over CTranslate2 on one thread, sorted by model, precision and batch."""
    rows = [row for row in results["ratios"] if row["peer"] == PEER and row["threads"] == THREADS]
    found = [Bar(row["model"], row["precision"], row["batch"], row["ratio"]) for row in rows]
    models = list(dict.fromkeys(bar.model for bar in found))
    return sorted(found, key=lambda bar: (models.index(bar.model), bar.precision, bar.batch))


def draw(results: Mapping[str, Any]) -> str:
    """Chart as SVG."""
    drawn, measured_on = bars(results), results["conditions"]["ratios"]
    scale = (WIDTH - LEFT - RIGHT) / max(1.0, *(bar.ratio for bar in drawn))
    places = list(_places(drawn))
    height = places[-1] + BAR + BOTTOM
    one = LEFT + scale
    caption = f"{measured_on['processor']}, commit {measured_on['commit']}, {measured_on['date'][:10]}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img" font-family="sans-serif" font-size="12" fill="#24292f">',
        f"<title>{TITLE}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="bold">{TITLE}</text>',
        *(line for bar, top in zip(drawn, places, strict=True) for line in _bar(bar, top, scale)),
        f'<line x1="{one:.1f}" y1="{TOP - 10}" x2="{one:.1f}" y2="{height - BOTTOM + 6}" stroke="#24292f"'
        ' stroke-dasharray="4 3"/>',
        f'<text x="16" y="{height - 14}" fill="#57606a">{caption}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _places(drawn: Sequence[Bar]) -> Iterator[int]:
    """Top of each bar, in pixels; a gap separates the groups of one model and precision."""
    top, group = TOP, None
    for bar in drawn:
        if group not in (None, (bar.model, bar.precision)):
            top += GROUP_GAP
        yield top
        top, group = top + BAR + GAP, (bar.model, bar.precision)


def _bar(bar: Bar, top: int, scale: float) -> tuple[str, str, str]:
    width, baseline = bar.ratio * scale, top + BAR - 4
    label = f"{bar.model}, {bar.precision}, batch {bar.batch}"
    return (
        f'<text x="{LEFT - 8}" y="{baseline}" text-anchor="end">{label}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[bar.precision]}"/>',
        f'<text x="{LEFT + width + 6:.1f}" y="{baseline}">{bar.ratio:.2f}</text>',
    )


if __name__ == "__main__":
    CHART.write_text(draw(json.loads((FOLDER / JSON_FILE).read_bytes())), encoding="utf-8")
