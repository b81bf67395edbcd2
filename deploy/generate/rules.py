"""Recording rules and alerts as values, and the files that Prometheus and promtool read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

RUNBOOK = "docs/runbook.md"

NOTE = "# Made by `python -m deploy.generate deploy`: change the code, not this file.\n"

Severity = Literal["critical", "warning"]
"""critical wakes somebody; warning waits for the morning."""


@dataclass(frozen=True)
class Recording:
    """A series that Prometheus works out at each evaluation."""

    name: str
    expression: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Series over time, and the alert at one moment."""

    series: Mapping[str, str]
    """Values a minute apart, as promtool writes them, by series."""
    minutes: int
    """When to look."""


@dataclass(frozen=True)
class Alert:
    """Something that somebody is to be told of."""

    name: str
    expression: str
    """Comparisons of a series with a number, the series on the left, joined by `and`: each left side is there whether
    the alert fires or not."""
    minutes: int
    """How long it must hold."""
    severity: Severity
    summary: str
    """One sentence; its section in the runbook says what to do."""
    fires: Case
    fires_with: Mapping[str, str]
    """The labels of the one alert that fires, beside its own."""
    quiet: Case
    """Series that are near to firing, and do not."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_labels(self) -> dict[str, str]:
        """What Prometheus adds to the labels of the expression."""
        return {**self.labels, "severity": self.severity}

    @property
    def annotations(self) -> dict[str, str]:
        """What whoever is told reads."""
        return {"summary": self.summary, "runbook": f"{RUNBOOK}#{self.name.lower()}"}


def rules_file(recordings: Sequence[Recording], alerts: Sequence[Alert]) -> str:
    """The rules, as Prometheus reads them."""
    return (
        NOTE
        + "groups:\n"
        + "".join(
            [
                "  - name: dragoman-recordings\n    rules:\n",
                *map(_recording, recordings),
                "  - name: dragoman-alerts\n    rules:\n",
                *map(_alert, alerts),
            ]
        )
    )


def cases_file(alerts: Sequence[Alert], rules: str) -> str:
    """Two tests for each alert, as promtool reads them; `rules` is the path of the rules from there."""
    tests = "".join(_case(alert, case) for alert in alerts for case in (alert.fires, alert.quiet))
    return f"{NOTE}rule_files: [{rules}]\nevaluation_interval: 1m\ntests:\n{tests}"


def _recording(rule: Recording) -> str:
    lines = [f"      - record: {rule.name}", *_expression(rule.expression), *_mapping("labels", rule.labels, 8)]
    return "\n".join(lines) + "\n"


def _alert(alert: Alert) -> str:
    lines = [
        f"      - alert: {alert.name}",
        *_expression(alert.expression),
        f"        for: {alert.minutes}m",
        *_mapping("labels", alert.all_labels, 8),
        *_mapping("annotations", alert.annotations, 8),
    ]
    return "\n".join(lines) + "\n"


def _case(alert: Alert, case: Case) -> str:
    lines = [
        f"  # {alert.name} {'fires' if case is alert.fires else 'does not fire'}",
        "  - interval: 1m",
        "    input_series:",
    ]
    for series, values in case.series.items():
        lines += [f"      - series: {json.dumps(series)}", f"        values: {json.dumps(values)}"]
    lines += ["    alert_rule_test:", f"      - eval_time: {case.minutes}m", f"        alertname: {alert.name}"]
    if case is alert.fires:
        lines += [
            "        exp_alerts:",
            f"          - exp_labels: {json.dumps({**alert.fires_with, **alert.all_labels})}",
            f"            exp_annotations: {json.dumps(alert.annotations)}",
        ]
    else:
        lines.append("        exp_alerts: []")
    return "\n".join(lines) + "\n"


def _expression(expression: str) -> list[str]:
    return ["        expr: |-", *(f"          {line.strip()}" for line in expression.strip().splitlines())]


def _mapping(name: str, values: Mapping[str, str], indent: int) -> list[str]:
    # A JSON string is a YAML string.
    space = " " * indent
    return (
        [f"{space}{name}:", *(f"{space}  {key}: {json.dumps(value)}" for key, value in values.items())]
        if values
        else []
    )
