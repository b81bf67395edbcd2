import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.generate.dashboards import dashboard_files
from deploy.generate.panels import PanelBuilder, bucket_heatmap, dashboard, number, series_names, time_series
from deploy.generate.query import Query

TITLE = ("Title", "Description.", "s")
UP = Query("sum(\n  up{$SERVER})", "{{job}}")


def page(*panels: PanelBuilder, heading: str = "Row") -> dict[str, Any]:
    return as_json(dashboard("uid", "Page", "About it.", {heading: panels}))


def as_json(built: Dashboard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    return found


def only(panel: PanelBuilder) -> dict[str, Any]:
    _, found = page(panel)["panels"]
    assert isinstance(found, dict)
    return found


def test_query_gets_the_selection_and_stays_on_one_line() -> None:
    (target,) = only(time_series(*TITLE, UP))["targets"]
    assert target["expr"] == 'sum( up{instance=~"$instance"})'
    assert Query("ready{$MODEL}").promql == 'ready{model=~"$model",instance=~"$instance"}'


def test_time_series_is_queried_over_the_range() -> None:
    panel = only(time_series(*TITLE, UP, Query("down")))
    assert panel["type"] == "timeseries"
    assert [(each["refId"], each["instant"], each["range"]) for each in panel["targets"]] == [
        ("A", False, True),
        ("B", False, True),
    ]
    assert [each["legendFormat"] for each in panel["targets"]] == ["{{job}}", "__auto"]


@pytest.mark.parametrize("stacked", [False, True])
def test_time_series_is_stacked_on_request(stacked: bool) -> None:
    custom = only(time_series(*TITLE, UP, stacked=stacked))["fieldConfig"]["defaults"]["custom"]
    assert custom["stacking"]["mode"] == ("normal" if stacked else "none")


def test_scale_begins_at_0_unless_it_follows_the_values() -> None:
    fixed = only(time_series(*TITLE, UP, maximum=1))["fieldConfig"]["defaults"]
    free = only(time_series(*TITLE, UP, minimum=None))["fieldConfig"]["defaults"]
    assert (fixed["min"], fixed["max"]) == (0, 1)
    assert {"min", "max"}.isdisjoint(free)


def test_number_is_queried_now_and_coloured_by_its_thresholds() -> None:
    panel = only(number(*TITLE, "up", (0.5, "orange"), (0.9, "red")))
    assert panel["type"] == "stat"
    assert [(each["instant"], each["range"]) for each in panel["targets"]] == [(True, False)]
    assert panel["fieldConfig"]["defaults"]["thresholds"] == {
        "mode": "absolute",
        "steps": [
            {"color": "green", "value": None},
            {"color": "orange", "value": 0.5},
            {"color": "red", "value": 0.9},
        ],
    }
    assert panel["options"]["colorMode"] == "background"


def test_number_without_thresholds_has_no_background() -> None:
    panel = only(number(*TITLE, "up"))
    assert "thresholds" not in panel["fieldConfig"]["defaults"]
    assert panel["options"]["colorMode"] == "value"
    assert panel["options"]["textMode"] == "auto"


def test_series_names_replace_the_values() -> None:
    panel = only(series_names("Title", "Description.", UP, width=8))
    assert panel["options"]["textMode"] == "name"


def test_heatmap_shows_the_buckets_of_the_histogram() -> None:
    panel = only(bucket_heatmap(*TITLE, "x_seconds", "$SERVER"))
    (target,) = panel["targets"]
    assert panel["type"] == target["format"] == "heatmap"
    assert target["expr"] == 'sum by (le) (increase(x_seconds_bucket{instance=~"$instance"}[$__rate_interval]))'
    assert panel["options"]["calculate"] is False
    assert panel["options"]["yAxis"]["unit"] == "s"


def test_description_ends_with_the_metrics() -> None:
    panel = only(time_series(*TITLE, Query("rate(a_total[5m]) / b"), Query("b")))
    assert panel["description"] == "Description. From `a_total`, `b`."


def test_panels_fill_lines_below_the_heading_of_their_row() -> None:
    panels = page(*(time_series(*TITLE, UP) for _ in range(4)), heading="Heading")["panels"]
    assert [panel["id"] for panel in panels] == [1, 2, 3, 4, 5]
    assert (panels[0]["type"], panels[0]["title"]) == ("row", "Heading")
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert places == [(0, 0), (0, 1), (8, 1), (16, 1), (0, 9)]


@pytest.mark.parametrize("text", dashboard_files().values(), ids=dashboard_files())
def test_dashboards_share_selection_links_and_time_range(text: str) -> None:
    found = json.loads(text)
    assert [variable["name"] for variable in found["templating"]["list"]] == ["model", "instance"]
    assert all(variable["current"]["value"] == ["$__all"] for variable in found["templating"]["list"])
    (link,) = found["links"]
    assert set(link["tags"]) == set(found["tags"])
    assert link["includeVars"]
    assert link["keepTime"]
    assert not found["editable"]
    assert (found["time"], found["refresh"]) == ({"from": "now-30m", "to": "now"}, "10s")
