import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.chart import CHART, bars, draw
from benchmarks.results_file import FOLDER, JSON_FILE

ROOT = Path(__file__).parents[3]
RESULTS = json.loads((ROOT / FOLDER / JSON_FILE).read_bytes())


def test_the_chart_matches_the_latest_results() -> None:
    assert (ROOT / CHART).read_text(encoding="utf-8") == draw(RESULTS), "run `python -m benchmarks.chart`"


def test_bar_lengths_are_proportional_to_the_ratios() -> None:
    drawn = bars(RESULTS)
    assert {bar.precision for bar in drawn} == {"float32", "int8"}
    svg = ElementTree.fromstring(draw(RESULTS))
    widths = [float(each.attrib["width"]) for each in svg.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(widths) == len(drawn)
    for bar, width in zip(drawn, widths, strict=True):
        assert abs(width / widths[0] - bar.ratio / drawn[0].ratio) < 0.01


def test_the_chart_includes_ratios_below_one() -> None:
    assert any(bar.ratio < 1 for bar in bars(RESULTS))
