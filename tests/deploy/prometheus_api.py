"""Client for the HTTP API of a running Prometheus."""

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
"""Ignores the environment's proxy, which cannot reach local addresses."""

SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class QueryError(Exception):
    """Prometheus rejected a query; the message is its own."""


@dataclass(frozen=True)
class Series:
    """One series of a query result."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]
    """Unix time in seconds, and value; without NaN and infinities."""


@dataclass(frozen=True)
class Rule:
    """A loaded rule."""

    name: str
    expression: str
    alerts: bool
    """True for an alert, False for a recording rule."""
    error: str
    """Error of the last evaluation; empty if it succeeded."""


class Prometheus:
    """The Prometheus at `address`, for example http://127.0.0.1:9090."""

    def __init__(self, address: str) -> None:
        self._address = address

    def instant(self, expression: str) -> list[Series]:
        """The current result of `expression`. Raises QueryError."""
        return [_series(each, [each["value"]]) for each in self._get("query", query=expression)["result"]]

    def over(self, expression: str, seconds: float, step: float) -> list[Series]:
        """The results of `expression` over the last `seconds`, `step` seconds apart. Raises QueryError."""
        end = time.time()
        found = self._get("query_range", query=expression, start=end - seconds, end=end, step=step)
        return [_series(each, each["values"]) for each in found["result"]]

    def label_values(self, selector: str, label: str) -> list[str]:
        """The values of `label` in the series matched by `selector`. Raises QueryError."""
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return values

    def rules(self) -> list[Rule]:
        """All rules, in order of evaluation."""
        return [
            Rule(rule["name"], rule["query"], rule["type"] == "alerting", rule.get("lastError", ""))
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
        ]

    def firing(self) -> set[str]:
        """Names of the firing alerts."""
        alerts = self._get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def scrape_seconds(self, job: str) -> float:
        """Scrape interval of the targets of `job`. Raises QueryError if there are none."""
        for target in self._get("targets")["activeTargets"]:
            if target["labels"]["job"] == job:
                return _seconds(target["scrapeInterval"])
        raise QueryError(f"no target of job {job!r}")

    def _get(self, path: str, **parameters: object) -> Any:
        address = f"{self._address}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with DIRECT.open(address, timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)["data"]
        except HTTPError as error:
            raise QueryError(error.read().decode(errors="replace")) from error


def _series(found: Any, values: list[tuple[float, str]]) -> Series:
    samples = ((float(moment), float(value)) for moment, value in values)
    return Series(found["metric"], tuple(sample for sample in samples if math.isfinite(sample[1])))


def _seconds(duration: str) -> float:
    """Seconds of a duration in Prometheus's notation, such as 1m30s."""
    return sum(float(number) * SECONDS_OF[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", duration))
