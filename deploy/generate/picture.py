"""The Overview's curves as a picture, drawn without Grafana.

    python -m deploy.generate.picture http://127.0.0.1:9090 docs/overview.png

Draws the time series panels from the last minutes of a live Prometheus, with the dashboard's own queries, titles and
legends. Needs `pip install '.[picture]'`.
"""

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from tests.deploy.prometheus_api import Prometheus, Series
from tests.deploy.queries import panels_of, substitute, variable_values

OVERVIEW = Path(__file__).parents[1] / "grafana" / "dashboards" / "overview.json"

COLUMNS = 3
PANEL_INCHES = (5.0, 2.7)
DOTS_PER_INCH = 80
MAX_POINTS = 240
"""Per curve."""
MAX_LEGEND_LINES = 6
COLORS = 64
"""Size of the palette; a small one keeps the file small."""

UNITS: dict[str, Callable[[float], str]] = {
    "bytes": lambda value: f"{value / 1e6:,.0f} MB",
    "percentunit": lambda value: f"{value:.0%}",
    "s": lambda value: f"{value * 1000:.4g} ms" if value < 1 else f"{value:.4g} s",
}
"""Number formats of Grafana's units; numbers of other units are written as they are."""


def draw(page: Any, prometheus: Prometheus, seconds: float) -> Figure:
    """The dashboard `page` over the last `seconds`. Raises ValueError, QueryError."""
    values = variable_values(page, prometheus)
    drawn = [panel for panel in panels_of(page) if panel["type"] == "timeseries"]
    rows = -(-len(drawn) // COLUMNS)
    end = time.time()
    figure = Figure(figsize=(COLUMNS * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    step = max(prometheus.scrape_seconds("dragoman"), seconds / MAX_POINTS)
    for place, panel in enumerate(drawn, start=1):
        axes = figure.add_subplot(rows, COLUMNS, place)
        curves = [
            (_name(target["legendFormat"], series), series)
            for target in panel["targets"]
            for series in prometheus.over(substitute(target["expr"], values), seconds, step)
        ]
        _panel(axes, panel, _worth_showing(curves), end)
    return figure


def _panel(axes: Axes, panel: Any, curves: list[tuple[str, Series]], end: float) -> None:
    axes.set_title(panel["title"], loc="left", fontsize=10)
    for name, series in curves:
        minutes = [(moment - end) / 60 for moment, _ in series.samples]
        axes.plot(minutes, [value for _, value in series.samples], label=name, linewidth=1.2)
    unit = UNITS.get(panel["fieldConfig"]["defaults"].get("unit", ""), "{:,.4g}".format)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter("{x:g} min")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if 0 < len(curves) <= MAX_LEGEND_LINES:
        axes.legend(fontsize=7, loc="best", frameon=False)


def _worth_showing(curves: list[tuple[str, Series]]) -> list[tuple[str, Series]]:
    """All curves if they fit the legend, else those that are not always 0."""
    if len(curves) <= MAX_LEGEND_LINES:
        return curves
    return [(name, series) for name, series in curves if any(value for _, value in series.samples)]


def _name(legend: str, series: Series) -> str:
    """Grafana's legend with the values of the series' labels."""
    if legend == "__auto":
        return ", ".join(value for label, value in series.labels.items() if label != "__name__")
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda match: series.labels.get(match[1], ""), legend)


def write(figure: Figure, path: Path) -> None:
    """Write `figure` as a PNG with few colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(path, optimize=True)


@click.command()
@click.argument("prometheus")
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
def main(prometheus: str, picture: Path, minutes: float) -> None:
    """Draw the Overview into the file PICTURE from the Prometheus at the URL PROMETHEUS."""
    page = json.loads(OVERVIEW.read_text(encoding="utf-8"))
    write(draw(page, Prometheus(prometheus.rstrip("/")), minutes * 60), picture)


if __name__ == "__main__":
    main()
