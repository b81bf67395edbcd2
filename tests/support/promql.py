"""What an expression gets wrong about the metrics that it names."""

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
"""Labels that Prometheus gives."""

OF_COUNTERS = ("rate", "increase", "irate")
OF_GAUGES = ("deriv", "delta", "predict_linear")
CALL = re.compile(rf"\b({'|'.join(OF_COUNTERS + OF_GAUGES)})\s*\(\s*([\w:]+)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
QUANTILE = re.compile(r"histogram_quantile\s*\(")


@dataclass(frozen=True)
class Known:
    """One series name, as a scrape shows it."""

    counts: bool
    """It only grows."""
    labels: Mapping[str, Set[str]]
    """The values of each label."""


def known() -> dict[str, Known]:
    """Every series that there is: what a server with a model shows, what rules record, and Prometheus's own."""
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
    """What `expression` gets wrong, one sentence each."""
    for name in names_in(expression):
        if name not in series:
            yield f"{name} is defined nowhere"
    for function, name in CALL.findall(expression):
        if name in series and series[name].counts != (function in OF_COUNTERS):
            yield f"{function} of {name}, which is a {'counter' if series[name].counts else 'gauge'}"
    for name, matchers in SELECTOR.findall(expression):
        if name in series:
            yield from _strangers(name, matchers, series[name])
    for match in QUANTILE.finditer(expression):
        if not re.search(r"\bby\s*\([^)]*\ble\b[^)]*\)", _argument(expression, match.end())):
            yield "histogram_quantile without by (le)"


def _strangers(name: str, matchers: str, what: Known) -> Iterator[str]:
    for label, operator, asked in MATCHER.findall(matchers):
        if label in SCRAPED:
            continue
        if label not in what.labels:
            yield f"{name} has no label {label}"
        elif label != "model" and operator in ("=", "=~"):
            values = asked.split("|") if operator == "=~" else [asked]
            for value in values:
                if not any(re.fullmatch(value, each) for each in what.labels[label]):
                    yield f"{name} has no {label} {value}"


def _argument(expression: str, start: int) -> str:
    """What stands between the bracket that ends before `start` and the one that closes it."""
    depth = 1
    for place in range(start, len(expression)):
        depth += {"(": 1, ")": -1}.get(expression[place], 0)
        if not depth:
            return expression[start:place]
    return expression[start:]
