"""Grafana's own types read the dashboards, and give back all that is in them: no option is misspelt or out of place."""

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.panels import grafana_json

PANEL_TYPES = {"row", "timeseries", "stat", "heatmap"}
"""Those of Grafana that are used here; the types would take any other name for one that they do not know."""


@pytest.fixture(scope="module", autouse=True)
def plugins() -> None:
    register_default_plugins()


def read_back(page: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(Dashboard.from_json(page), cls=JSONEncoder))
    return found


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """Where `before` holds something that `after` does not; `after` may hold defaults beside it."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [place for key in before for place in lost(before[key], after.get(key), f"{where}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [place for index, pair in pairs for place in lost(*pair, f"{where}[{index}]")]
    return [] if before == after else [where]


@pytest.mark.parametrize("name", list(DASHBOARDS))
def test_nothing_is_lost_on_the_way_through_grafana_s_types(name: str) -> None:
    page = grafana_json(DASHBOARDS[name])
    assert lost(page, read_back(page)) == []
    assert {panel["type"] for panel in page["panels"]} <= PANEL_TYPES


@pytest.mark.parametrize("part", ["fieldConfig", "options"])
def test_a_misspelt_option_is_lost(part: str) -> None:
    page = grafana_json(DASHBOARDS["overview"])
    panel = next(panel for panel in page["panels"] if panel["type"] == "timeseries")
    panel[part]["lgend"] = {"showLegend": True}
    (place,) = lost(page, read_back(page))
    assert place.endswith(f"{part}.lgend")
