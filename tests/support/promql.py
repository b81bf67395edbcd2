"""Checks PromQL expressions against the metrics defined in the code."""

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import grpc
from prometheus_client import CollectorRegistry

from deploy.generate.alerts import RECORDINGS
from deploy.generate.promql_names import names_in
from dragoman.service.system.memory_limits import DeviceMemory
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import MethodMetrics, ModelMetrics
from dragoman.v1.names import METHODS, SERVICE

SCRAPED = frozenset({"job", "instance"})
"""Labels added by Prometheus."""

OF_COUNTERS = ("rate", "increase", "irate")
OF_GAUGES = ("deriv", "delta", "predict_linear")
CALL = re.compile(rf"\b({'|'.join(OF_COUNTERS + OF_GAUGES)})\s*\(\s*([\w:]+)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
QUANTILE = re.compile(r"histogram_quantile\s*\(")


@dataclass(frozen=True)
class Known:
    """The series of one name in a scrape."""

    counts: bool
    """True for a counter, or a histogram's part."""
    labels: Mapping[str, Set[str]]
    """Values by label."""


def known() -> dict[str, Known]:
    """All series: those of a server with a model, the recording rules', and Prometheus's own."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, lambda: (DeviceMemory(0, 1, 2),))
    ModelMetrics(metrics, "m", ("fr",)).loaded("1", "transformer", "int8", "CPUExecutionProvider", True, 1, 1)
    for method in METHODS:
        MethodMetrics(metrics, SERVICE, method).handled(grpc.StatusCode.OK, 1)
    found: dict[str, Known] = {}
    for family in registry.collect():
        for sample in family.samples:
            before = found.get(sample.name)
            labels = {label: {value} for label, value in sample.labels.items()}
            if before is not None:
                labels = {label: values | before.labels[label] for label, values in labels.items()}
            counts = family.type == "counter" or sample.name != family.name
            found[sample.name] = Known(counts, labels)
    recorded = {
        rule.name: Known(False, {"model": set(), "reason": {"length", "repetition"}, "grpc_method": set(METHODS)})
        for rule in RECORDINGS
    }
    return {**found, **recorded, "up": Known(False, {})}


def faults(expression: str, series: Mapping[str, Known]) -> Iterator[str]:
    """Faults of `expression`, one sentence each."""
    for name in names_in(expression):
        if name not in series:
            yield f"{name} does not exist"
    for function, name in CALL.findall(expression):
        if name in series and series[name].counts != (function in OF_COUNTERS):
            yield f"{function} of {name}, which is a {'counter' if series[name].counts else 'gauge'}"
    for name, matchers in SELECTOR.findall(expression):
        if name in series:
            yield from _matcher_faults(name, matchers, series[name])
    for match in QUANTILE.finditer(expression):
        if not re.search(r"\bby\s*\([^)]*\ble\b[^)]*\)", _argument(expression, match.end())):
            yield "histogram_quantile without by (le)"


def _matcher_faults(name: str, matchers: str, series: Known) -> Iterator[str]:
    for label, operator, value in MATCHER.findall(matchers):
        if label in SCRAPED:
            continue
        if label not in series.labels:
            yield f"{name} has no label {label}"
        elif label != "model" and operator in ("=", "=~"):
            alternatives = value.split("|") if operator == "=~" else [value]
            for alternative in alternatives:
                if not any(re.fullmatch(alternative, each) for each in series.labels[label]):
                    yield f"{name} has no {label} {alternative}"


def _argument(expression: str, start: int) -> str:
    """The text from `start` up to the bracket that closes the one just before `start`."""
    depth = 1
    for place in range(start, len(expression)):
        depth += {"(": 1, ")": -1}.get(expression[place], 0)
        if not depth:
            return expression[start:place]
    return expression[start:]
