"""Every question that the dashboards and the rules ask, put to a live Prometheus.

A dashboard that names what there is not shows an empty panel, and an alert on it never fires; neither is an error to
Grafana or Prometheus. So here every panel must have a finite sample, and every alert what it compares.
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
"""How far back a panel is looked at."""
SCRAPES_PER_RATE = 4
"""Grafana's $__rate_interval spans at least so many."""

LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), *(?P<label>\w+)\)")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
JOINED = re.compile(r" (?:and|or|unless) ")
COMPARED = re.compile(r"(?P<left>.+?) (?:[<>]=?|[!=]=) \S+")

DEVICE_METRICS = ("dragoman_device_memory_bytes",)
"""Absent where there is no GPU, and so is what is drawn of them."""


@dataclass(frozen=True)
class Question:
    """One expression, as Prometheus takes it."""

    place: str
    """Where it is asked, for people."""
    expression: str
    instant: bool
    of_rule: bool = False
    """Asked by a rule, not by a panel."""

    @property
    def needs_device(self) -> bool:
        """Whether there is an answer only beside a GPU."""
        return any(name in self.expression for name in DEVICE_METRICS)


@dataclass(frozen=True)
class Finding:
    """A question that got no proper answer."""

    question: Question
    problem: str


def panels(dashboards: Sequence[Path], prometheus: Prometheus) -> Iterator[Question]:
    """The questions of all panels, with their variables put in. Raises ValueError for a variable without a value."""
    for path in dashboards:
        page = json.loads(path.read_text(encoding="utf-8"))
        values = values_for(page, prometheus)
        for panel in panels_of(page):
            for target in panel.get("targets", ()):
                place = f"{page['title']}: {panel['title']} ({target['refId']})"
                yield Question(place, put_in(target["expr"], values), bool(target.get("instant")))


def values_for(page: Any, prometheus: Prometheus) -> dict[str, str]:
    """What Grafana puts in for the variables of a dashboard. Raises ValueError for one without a value."""
    rate_interval = f"{SCRAPES_PER_RATE * prometheus.scrape_seconds(JOB):g}s"
    values = {"__rate_interval": rate_interval}
    for variable in page["templating"]["list"]:
        values[variable["name"]] = _all_of(variable, values, prometheus)
    return values


def panels_of(holder: Any) -> Iterator[Any]:
    """All panels of a dashboard, those inside of rows too."""
    for panel in holder.get("panels", ()):
        yield panel
        yield from panels_of(panel)


def conditions(rules: Sequence[Rule]) -> Iterator[Question]:
    """What rules record, and what alerts compare. Raises ValueError for an alert that compares nothing."""
    for rule in rules:
        for expression in compared(rule.expression) if rule.alerts else (rule.expression, rule.name):
            yield Question(f"rule {rule.name}", expression, instant=True, of_rule=True)


def ask(question: Question, prometheus: Prometheus) -> Finding | None:
    """What is wrong with the answer, if anything is."""
    try:
        if question.instant:
            answer = prometheus.instant(question.expression)
        else:
            answer = prometheus.over(question.expression, SPAN_SECONDS, prometheus.scrape_seconds(JOB))
    except QueryError as error:
        return Finding(question, f"error: {error}")
    return None if _finite(answer) else Finding(question, "empty")


def put_in(expression: str, values: Mapping[str, str]) -> str:
    """`expression` with the dashboard's variables replaced. Raises ValueError for one that there is not."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise ValueError(f"no variable ${name} for {expression!r}")
        return values[name]

    return VARIABLE.sub(value, expression)


def compared(alert: str) -> list[str]:
    """The left sides of the comparisons that `alert` is made of. Raises ValueError where one part compares nothing."""
    sides = []
    for part in JOINED.split(" ".join(alert.split())):
        comparison = COMPARED.fullmatch(part)
        if comparison is None:
            raise ValueError(f"{part!r} in alert {alert!r} compares nothing")
        sides.append(comparison["left"])
    return sides


def _all_of(variable: Any, values: Mapping[str, str], prometheus: Prometheus) -> str:
    """What Grafana puts in for "All": every value, as one regular expression."""
    asked = LABEL_VALUES.fullmatch(variable["query"]["query"])
    if asked is None:
        raise ValueError(f"variable {variable['name']} must be label_values(...), is {variable['query']['query']!r}")
    found = prometheus.label_values(put_in(asked["selector"], values), asked["label"])
    if not found:
        raise ValueError(f"variable {variable['name']} has no value")
    return "|".join(re.escape(value).replace("\\", r"\\") for value in found)


def _finite(answer: Sequence[Series]) -> bool:
    return any(series.samples for series in answer)
