"""Evaluates every query of the dashboards and rules against a live Prometheus.

A panel on a metric that does not exist is empty, and an alert on it never fires. Grafana and Prometheus report neither
as an error. Therefore every panel, recording rule and left side of an alert's comparison must have a finite sample.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.prometheus_api import Prometheus, QueryError, Rule, Series

JOB = "dragoman"
SPAN_SECONDS = 60
"""Time range of a panel's query."""
SCRAPES_PER_RATE = 4
"""Minimum number of scrapes in Grafana's $__rate_interval."""

LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), *(?P<label>\w+)\)")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
JOINED = re.compile(r" (?:and|or|unless) ")
COMPARED = re.compile(r"(?P<left>.+?) (?:[<>]=?|[!=]=) \S+")

DEVICE_METRICS = ("dragoman_device_memory_bytes",)
"""Metrics that do not exist without a GPU; panels on them may be empty."""


@dataclass(frozen=True)
class LiveQuery:
    """One expression without variables, ready for Prometheus."""

    origin: str
    """Panel or rule, for messages."""
    expression: str
    instant: bool
    of_rule: bool = False
    """From a rule, not from a panel."""

    @property
    def needs_device(self) -> bool:
        """Whether the result is empty without a GPU."""
        return any(name in self.expression for name in DEVICE_METRICS)


@dataclass(frozen=True)
class Finding:
    """A query with an error or without a finite sample."""

    query: LiveQuery
    problem: str


def panels(dashboards: Sequence[Path], prometheus: Prometheus) -> Iterator[LiveQuery]:
    """The queries of all panels, variables substituted. Raises ValueError for a variable without a value."""
    for path in dashboards:
        page = json.loads(path.read_text(encoding="utf-8"))
        values = variable_values(page, prometheus)
        for panel in panels_of(page):
            for target in panel.get("targets", ()):
                origin = f"{page['title']}: {panel['title']} ({target['refId']})"
                yield LiveQuery(origin, substitute(target["expr"], values), bool(target.get("instant")))


def variable_values(page: Any, prometheus: Prometheus) -> dict[str, str]:
    """Grafana's values for the variables of a dashboard. Raises ValueError for a variable without a value."""
    rate_interval = f"{SCRAPES_PER_RATE * prometheus.scrape_seconds(JOB):g}s"
    values = {"__rate_interval": rate_interval}
    for variable in page["templating"]["list"]:
        values[variable["name"]] = _all_of(variable, values, prometheus)
    return values


def panels_of(holder: Any) -> Iterator[Any]:
    """All panels of a dashboard, including those inside rows."""
    for panel in holder.get("panels", ()):
        yield panel
        yield from panels_of(panel)


def conditions(rules: Sequence[Rule]) -> Iterator[LiveQuery]:
    """Queries for recording rules and for the sides of alerts. Raises ValueError for an alert without comparison."""
    for rule in rules:
        for expression in compared_sides(rule.expression) if rule.alerts else (rule.expression, rule.name):
            yield LiveQuery(f"rule {rule.name}", expression, instant=True, of_rule=True)


def run_query(query: LiveQuery, prometheus: Prometheus) -> Finding | None:
    """Evaluate `query`; returns a finding for an error or an empty result."""
    try:
        if query.instant:
            result = prometheus.instant(query.expression)
        else:
            result = prometheus.over(query.expression, SPAN_SECONDS, prometheus.scrape_seconds(JOB))
    except QueryError as error:
        return Finding(query, f"error: {error}")
    return None if _finite(result) else Finding(query, "empty")


def substitute(expression: str, values: Mapping[str, str]) -> str:
    """Replace the dashboard's variables in `expression`. Raises ValueError for an unknown variable."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise ValueError(f"no variable ${name} for {expression!r}")
        return values[name]

    return VARIABLE.sub(value, expression)


def compared_sides(alert: str) -> list[str]:
    """Left sides of the comparisons in `alert`. Raises ValueError for a part without a comparison."""
    sides = []
    for part in JOINED.split(" ".join(alert.split())):
        comparison = COMPARED.fullmatch(part)
        if comparison is None:
            raise ValueError(f"{part!r} in alert {alert!r} compares nothing")
        sides.append(comparison["left"])
    return sides


def _all_of(variable: Any, values: Mapping[str, str], prometheus: Prometheus) -> str:
    """Grafana's value for "All": every value of the variable, as one regular expression."""
    call = LABEL_VALUES.fullmatch(variable["query"]["query"])
    if call is None:
        raise ValueError(f"variable {variable['name']} must be label_values(...), is {variable['query']['query']!r}")
    found = prometheus.label_values(substitute(call["selector"], values), call["label"])
    if not found:
        raise ValueError(f"variable {variable['name']} has no value")
    return "|".join(re.escape(value).replace("\\", r"\\") for value in found)


def _finite(result: Sequence[Series]) -> bool:
    return any(series.samples for series in result)
