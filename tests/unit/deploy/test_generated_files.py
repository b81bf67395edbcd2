import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.generate.__main__ import files
from deploy.generate.alerts import ALERTS, RECORDINGS
from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.panels import SOURCE
from deploy.generate.promql_names import names_in
from dragoman.service.telemetry.metrics import OBJECTIVES, SECONDS
from dragoman.v1.names import METHODS
from tests.support.promql import faults, known

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

NAMED = re.compile(r"`((?:dragoman|grpc_server|process)[_:][\w:]+)`")
"""A metric in a documentation page."""


def panels(name: str) -> list[dict[str, Any]]:
    """The panels of a file in deploy/, without the headings of rows."""
    return [panel for panel in whole(name)["panels"] if panel["type"] != "row"]


def whole(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards" / f"{name}.json").read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for name in DASHBOARDS:
        for panel in panels(name):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
    for recording in RECORDINGS:
        yield recording.name, recording.expression
    for alert in ALERTS:
        yield alert.name, alert.expression


def test_files_are_up_to_date() -> None:
    for path, text in files().items():
        assert (DEPLOY / path).read_text() == text, "run: make generated"


def test_dashboards_and_rules_name_existing_metrics() -> None:
    series = known()
    found = [f"{where}: {fault}" for where, expression in expressions() for fault in faults(expression, series)]
    assert found == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(dragoman_redy)", "dragoman_redy does not exist"),
        ("rate(dragoman_active_rows[5m])", "rate of dragoman_active_rows, which is a gauge"),
        ("rate(dragoman:memory:ratio[5m])", "rate of dragoman:memory:ratio, which is a gauge"),
        ("deriv(dragoman_tokens_total[5m])", "deriv of dragoman_tokens_total, which is a counter"),
        ("sum(dragoman_step_seconds)", "dragoman_step_seconds does not exist"),
        ('dragoman_ready{modl="m"}', "dragoman_ready has no label modl"),
        ('dragoman_tokens_total{kind="sauce"}', "dragoman_tokens_total has no kind sauce"),
        ('dragoman_finished_total{reason=~"end|lenght"}', "dragoman_finished_total has no reason lenght"),
        ('dragoman_step_seconds_bucket{le="0.3"}', "dragoman_step_seconds_bucket has no le 0.3"),
        (
            "histogram_quantile(0.9, sum by (model) (rate(dragoman_step_seconds_bucket[5m])))",
            "histogram_quantile without by (le)",
        ),
        ("histogram_quantile(0.9, sum(rate(dragoman_step_seconds_bucket[5m]))) / sum by (le) (up)", "without by (le)"),
    ],
)
def test_faulty_expression_is_found(expression: str, fault: str) -> None:
    found = list(faults(expression, known()))
    assert len(found) == 1
    assert fault in found[0]


def test_names_exclude_labels_functions_and_keywords() -> None:
    expression = """sum by (job, le) (rate(a_total{b="c",d=~"e|f"}[$__rate_interval])) / on (job) group_left
    max(g:h:i offset 5m) or vector(0) and time() - 1e3 > 2"""
    assert names_in(expression) == ("a_total", "g:h:i")


@pytest.mark.parametrize("name", list(DASHBOARDS))
def test_every_panel_has_a_unit_and_describes_its_metrics(name: str) -> None:
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"].endswith(".")
        unit = panel["options"]["yAxis"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]
        assert unit["unit"]
        assert panel["targets"]
        for target in panel["targets"]:
            for metric in names_in(target["expr"]):
                assert f"`{metric}`" in panel["description"]


@pytest.mark.parametrize("name", list(DASHBOARDS))
def test_panels_have_unique_ids_titles_and_places(name: str) -> None:
    found = whole(name)["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    assert len({panel["title"] for panel in found}) == len(found)
    for one, other in itertools.combinations([panel["gridPos"] for panel in found], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in found)


def test_dashboards_use_the_provisioned_data_source() -> None:
    provisioned = (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    assert re.findall(r"^ +uid: (\S+)$", provisioned, re.MULTILINE) == [SOURCE.uid]
    (interval,) = re.findall(r"^ +timeInterval: (\S+)$", provisioned, re.MULTILINE)
    assert f"scrape_interval: {interval}\n" in (DEPLOY / "prometheus/prometheus.yml").read_text()
    for name in DASHBOARDS:
        text = json.dumps(whole(name))
        assert "${DS_" not in text
        assert set(re.findall(r'"uid": "([^"]+)"', text)) == {SOURCE.uid, whole(name)["uid"]}


def test_dashboards_have_unique_uids_and_titles() -> None:
    found = [whole(name) for name in DASHBOARDS]
    for key in ("uid", "title"):
        assert len({each[key] for each in found}) == len(found)


def test_runbook_has_one_section_for_each_alert() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sections == list(dict.fromkeys(alert.name for alert in ALERTS))
    for alert in ALERTS:
        assert alert.annotations["runbook"] == f"docs/runbook.md#{alert.name.lower()}"
        assert alert.summary.endswith(".")


def test_alerts_compare_a_series_with_a_number() -> None:
    for alert in ALERTS:
        for comparison in alert.expression.split(" and "):
            left, bound = re.split(r" [<>] ", comparison)
            assert names_in(left)
            assert float(bound) >= 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_existing_metrics(page: Path) -> None:
    series = known()
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in series}
    assert [name for name in NAMED.findall(page.read_text()) if name not in families | set(series)] == []


def test_objectives_are_bucket_bounds_of_known_methods() -> None:
    assert set(OBJECTIVES) <= set(METHODS)
    assert set(OBJECTIVES.values()) <= set(SECONDS)
