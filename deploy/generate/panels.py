"""A dashboard as values, and as the JSON that Grafana provisions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deploy.generate.promql_names import names_in

SOURCE = {"type": "prometheus", "uid": "dragoman-prometheus"}
"""The data source, under the uid that deploy/grafana/provisioning gives it."""

WIDTH = 24
"""Of a dashboard, in Grafana's columns."""

SCHEMA_VERSION = 41
"""Of Grafana 11.6."""

MODEL = 'model=~"$model",instance=~"$instance"'
SERVER = 'instance=~"$instance"'

Kind = Literal["timeseries", "stat", "heatmap"]
Color = Literal["green", "orange", "red", "text"]


@dataclass(frozen=True)
class Query:
    """One expression of a panel. `$MODEL` and `$SERVER` stand for the matchers of what the reader has chosen."""

    expression: str
    legend: str = ""

    @property
    def promql(self) -> str:
        """The expression with Grafana's own variables left in it."""
        return self.expression.replace("$MODEL", MODEL).replace("$SERVER", SERVER)


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    description: str
    """What it shows, for a newcomer; the names of the metrics are added."""
    unit: str
    """Grafana's name of it."""
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    names: bool = False
    """A stat shows the names of its series, not their values."""
    least: float | None = 0
    most: float | None = None
    """The ends of the scale; None follows the values."""
    steps: tuple[tuple[float, Color], ...] = ()
    """Colours from these values on."""


@dataclass(frozen=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    def panels(self) -> Iterator[Panel]:
        """All of them, in their order."""
        for row in self.rows:
            yield from row.panels


def grafana_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["dragoman"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [_links()],
        "templating": {
            "list": [
                _variable("model", "Model", "label_values(dragoman_model_info, model)"),
                _variable("instance", "Server", 'label_values(dragoman_model_info{model=~"$model"}, instance)'),
            ]
        },
        "panels": list(_laid_out(dashboard.rows)),
    }


def _laid_out(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Every row below the last, its panels from left to right, in as many lines as they need."""
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        left = tallest = 0
        for panel in row.panels:
            number += 1
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": panel.height})
            left += panel.width
            tallest = max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": described(panel),
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(panel, query, chr(ord("A") + place)) for place, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def described(panel: Panel) -> str:
    """What the panel shows, and of which metrics."""
    names = dict.fromkeys(name for query in panel.queries for name in names_in(query.promql))
    return f"{panel.description} From {', '.join(f'`{name}`' for name in names)}."


def _target(panel: Panel, query: Query, letter: str) -> dict[str, Any]:
    instant = panel.kind == "stat"
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": " ".join(query.promql.split()),
        "legendFormat": query.legend or "__auto",
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.kind == "heatmap":
        return {}
    ends = {"min": panel.least, "max": panel.most}
    defaults: dict[str, Any] = {"unit": panel.unit, **{end: value for end, value in ends.items() if value is not None}}
    if panel.steps:
        first = {"color": "green", "value": None}
        steps = [{"color": color, "value": value} for value, color in panel.steps]
        defaults["thresholds"] = {"mode": "absolute", "steps": [first, *steps]}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 10,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "name" if panel.names else "auto",
            "colorMode": "background" if panel.steps else "value",
            "graphMode": "none",
        }
    if panel.kind == "heatmap":
        return {
            # Each bucket of a histogram is a line; how long the line's texts or calls are is the scale on the left.
            "calculate": False,
            "yAxis": {"unit": panel.unit, "axisPlacement": "left"},
            "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "exponent": 0.5, "fill": "dark-orange"},
            "cellGap": 1,
            "legend": {"show": True},
            "tooltip": {"mode": "single", "yHistogram": False},
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        # On every change of the time span: servers come and go.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Dragoman",
        "tags": ["dragoman"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "icon": "external link",
        "tooltip": "",
        "url": "",
        "targetBlank": False,
    }
