"""What a running Prometheus knows, through its HTTP interface."""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

TIMEOUT_SECONDS = 20

DIRECT = build_opener(ProxyHandler({}))
"""A proxy of the environment is for the world outside."""

SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class QueryError(Exception):
    """Prometheus refused a question; the message is its own."""


@dataclass(frozen=True)
class Series:
    """One series of an answer."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]
    """Time in seconds since 1970, and value; NaN and infinities left out."""


@dataclass(frozen=True)
class Rule:
    """A rule as Prometheus has loaded it."""

    name: str
    expression: str
    alerts: bool
    """An alert, not a recording rule."""
    error: str
    """Of the last evaluation; empty where there was none."""


class Prometheus:
    """One Prometheus at `address`, such as http://127.0.0.1:9090."""

    def __init__(self, address: str) -> None:
        self._address = address

    def instant(self, expression: str) -> list[Series]:
        """What `expression` is now. Raises QueryError."""
        return [_series(each, [each["value"]]) for each in self._get("query", query=expression)["result"]]

    def over(self, expression: str, seconds: float, step: float) -> list[Series]:
        """What `expression` was in the last `seconds`, each `step` seconds. Raises QueryError."""
        end = time.time()
        found = self._get("query_range", query=expression, start=end - seconds, end=end, step=step)
        return [_series(each, each["values"]) for each in found["result"]]

    def label_values(self, selector: str, label: str) -> list[str]:
        """The values of `label` among the series that `selector` matches. Raises QueryError."""
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return values

    def rules(self) -> list[Rule]:
        """All rules, in their order."""
        return [
            Rule(rule["name"], rule["query"], rule["type"] == "alerting", rule.get("lastError", ""))
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
        ]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def scrape_seconds(self, job: str) -> float:
        """How often the targets of `job` are scraped. Raises QueryError where there are none."""
        for target in self._get("targets")["activeTargets"]:
            if target["labels"]["job"] == job:
                return _seconds(target["scrapeInterval"])
        raise QueryError(f"no target of job {job!r}")

    def _get(self, what: str, **parameters: object) -> Any:
        address = f"{self._address}/api/v1/{what}?{urlencode(parameters)}"
        try:
            with DIRECT.open(address, timeout=TIMEOUT_SECONDS) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise QueryError(error.read().decode(errors="replace")) from error


def _series(found: Any, values: list[tuple[float, str]]) -> Series:
    samples = ((float(moment), float(value)) for moment, value in values)
    return Series(found["metric"], tuple(sample for sample in samples if math.isfinite(sample[1])))


def _seconds(duration: str) -> float:
    """Seconds of a duration as Prometheus writes it: 1m30s."""
    return sum(float(number) * SECONDS_OF[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", duration))
