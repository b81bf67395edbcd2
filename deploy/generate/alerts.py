"""Alerts, and the recording rules that they compare with thresholds."""

from collections.abc import Mapping

from deploy.generate.rules import Alert, Case, Recording
from dragoman.service.telemetry.metrics import OBJECTIVE_SHARE, OBJECTIVES
from dragoman.v1.names import SERVICE

JOB = "dragoman"
"""Name of the servers' job in Prometheus's configuration."""

MIN_TARGETS = 1
"""Number of servers that must be up; raise it with the replicas."""

FAILURES = "INTERNAL|UNKNOWN|DATA_LOSS|UNAVAILABLE|DEADLINE_EXCEEDED"
"""Statuses that count as server errors; calls refused for lack of capacity count as refusals."""

REFUSALS = "queue_full|deadline|draining|rate"
"""Reasons for refusal that are not the caller's fault."""

WINDOWS = ("5m", "30m", "1h", "6h")

FAST_BURN, SLOW_BURN = 14.4, 6.0
"""Slow calls as a multiple of the objective's allowance: at these rates a month's allowance is used up in two days, and
in five. From the SRE Workbook, "Alerting on SLOs"."""

_OURS = f'grpc_service="{SERVICE}"'


def _slow_calls(method: str, window: str) -> Recording:
    chosen = f'{_OURS},grpc_method="{method}"'
    bound = f'{chosen},le="{float(OBJECTIVES[method])}"'
    return Recording(
        f"dragoman:slow_calls:ratio{window}",
        f"""1 - sum by (job) (rate(grpc_server_handling_seconds_bucket{{{bound}}}[{window}]))
        / sum by (job) (rate(grpc_server_handling_seconds_count{{{chosen}}}[{window}]))""",
        {"grpc_method": method},
    )


RECORDINGS = (
    Recording("dragoman:targets_up:sum", f'sum(up{{job="{JOB}"}}) or vector(0)'),
    Recording(
        "dragoman:errors:ratio5m",
        f"""sum by (job, instance) (rate(grpc_server_handled_total{{{_OURS},grpc_code=~"{FAILURES}"}}[5m]))
        / sum by (job, instance) (rate(grpc_server_handled_total{{{_OURS}}}[5m]))""",
    ),
    Recording(
        "dragoman:refusals:ratio5m",
        f"""sum by (job, instance) (rate(dragoman_refused_total{{reason=~"{REFUSALS}"}}[5m]))
        / sum by (job, instance) (rate(grpc_server_started_total{{{_OURS}}}[5m]))""",
    ),
    *(_slow_calls(method, window) for method in OBJECTIVES for window in WINDOWS),
    Recording("dragoman:memory:ratio", f'process_resident_memory_bytes{{job="{JOB}"}} / dragoman_memory_limit_bytes'),
    Recording(
        "dragoman:memory_growth_a_day:ratio2h",
        f"""deriv(process_resident_memory_bytes{{job="{JOB}"}}[2h]) * 86400
        / process_resident_memory_bytes{{job="{JOB}"}}""",
    ),
    Recording(
        "dragoman:finished:ratio15m",
        """sum by (job, instance, model, reason) (rate(dragoman_finished_total{reason=~"length|repetition"}[15m]))
        / on (job, instance, model) group_left
        sum by (job, instance, model) (rate(dragoman_finished_total{reason=~"end|length|repetition"}[15m]))""",
    ),
)

_SERVER = {"job": JOB, "instance": "a"}
_MODEL = {**_SERVER, "model": "m"}


def _series(name: str, **labels: str) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inner}}}"


def _growing(step: float, minutes: int) -> str:
    """A counter that grows by `step` per minute."""
    return f"0+{step:g}x{minutes}"


def _calls(minutes: int, **by_code: float) -> Mapping[str, str]:
    """Calls per minute that end with each status."""
    labels = {**_SERVER, "grpc_service": SERVICE, "grpc_method": "Translate"}
    return {
        _series("grpc_server_handled_total", **labels, grpc_code=code): _growing(each, minutes)
        for code, each in by_code.items()
    }


def _refused(minutes: int, refused: float) -> Mapping[str, str]:
    labels = {**_SERVER, "grpc_service": SERVICE, "grpc_method": "Translate"}
    return {
        _series("dragoman_refused_total", **_SERVER, reason="queue_full"): _growing(refused, minutes),
        _series("dragoman_refused_total", **_SERVER, reason="bad_request"): _growing(50, minutes),
        _series("grpc_server_started_total", **labels): _growing(100, minutes),
    }


def _timed(minutes: int, slow: float) -> Mapping[str, str]:
    """100 Translate calls per minute, `slow` of them slower than the objective."""
    labels = {**_SERVER, "grpc_service": SERVICE, "grpc_method": "Translate"}
    bound = str(float(OBJECTIVES["Translate"]))
    return {
        _series("grpc_server_handling_seconds_bucket", **labels, le=bound): _growing(100 - slow, minutes),
        _series("grpc_server_handling_seconds_count", **labels): _growing(100, minutes),
    }


def _ended(minutes: int, **by_reason: float) -> Mapping[str, str]:
    return {
        _series("dragoman_finished_total", **_MODEL, reason=reason): _growing(each, minutes)
        for reason, each in by_reason.items()
    }


def _gauges(values: Mapping[str, str]) -> Mapping[str, str]:
    """Gauges of a model, by name."""
    return {_series(name, **_MODEL): each for name, each in values.items()}


def _process(values: Mapping[str, str]) -> Mapping[str, str]:
    """Gauges of a server, by name."""
    return {_series(name, **_SERVER): each for name, each in values.items()}


def _burn(name: str, factor: float, windows: tuple[str, str], minutes: int, case_minutes: int, summary: str) -> Alert:
    bound = f"{factor * (1 - OBJECTIVE_SHARE):g}"
    short, long = (f"dragoman:slow_calls:ratio{window} > {bound}" for window in windows)
    share = 100 * factor * (1 - OBJECTIVE_SHARE)
    return Alert(
        name,
        f"{short} and {long}",
        minutes,
        "critical" if factor == FAST_BURN else "warning",
        summary,
        Case(_timed(case_minutes, share + 1), case_minutes),
        {"job": JOB, "grpc_method": "Translate"},
        Case(_timed(case_minutes, share - 1), case_minutes),
    )


def _queue(unit: str, name: str) -> Alert:
    return Alert(
        "DragomanQueueNearlyFull",
        f"{name} / {name}_limit > 0.8",
        2,
        "warning",
        "The queue is nearly full; calls are about to be refused.",
        Case(_gauges({name: "90x10", f"{name}_limit": "100x10"}), 5),
        _MODEL,
        Case(_gauges({name: "0 90 0 90 0 90 0 90", f"{name}_limit": "100x10"}), 7),
        {"unit": unit},
    )


ALERTS = (
    Alert(
        "DragomanTargetsMissing",
        f"dragoman:targets_up:sum < {MIN_TARGETS}",
        1,
        "critical",
        "Fewer servers are up than required.",
        # With service discovery, a lost server has no series at all.
        Case({_series("up", job="other", instance="b"): "1x10"}, 3),
        {},
        Case({_series("up", **_SERVER): "1x10", _series("up", job=JOB, instance="b"): "0x10"}, 5),
    ),
    Alert(
        "DragomanTargetLost",
        "dragoman:targets_up:sum - max_over_time(dragoman:targets_up:sum[30m]) < 0",
        2,
        "warning",
        "Fewer servers are up than at some time in the last 30 minutes.",
        Case({_series("up", **_SERVER): "1x30", _series("up", job=JOB, instance="b"): "1x10 stale"}, 20),
        {},
        Case({_series("up", **_SERVER): "1x60", _series("up", job=JOB, instance="b"): "1 1 0 1 1 1 1 1 1 1"}, 4),
    ),
    Alert(
        "DragomanNotReady",
        "dragoman_ready < 1",
        2,
        "critical",
        "The server runs but does not answer calls.",
        Case(_gauges({"dragoman_ready": "1 0x10"}), 5),
        _MODEL,
        Case(_gauges({"dragoman_ready": "0 0 1x10"}), 5),
    ),
    Alert(
        "DragomanRestarts",
        f'changes(process_start_time_seconds{{job="{JOB}"}}[15m]) > 2',
        0,
        "critical",
        "The server has restarted more than twice within 15 minutes.",
        Case(_process({"process_start_time_seconds": "10 10 70 70 130 130 190 190"}), 7),
        _SERVER,
        Case(_process({"process_start_time_seconds": "10 10 70 70 130 130 130 130"}), 7),
    ),
    Alert(
        "DragomanErrors",
        "dragoman:errors:ratio5m > 0.05",
        5,
        "critical",
        "More than 5 % of the calls end with a server error.",
        Case(_calls(20, OK=94, INTERNAL=6), 20),
        _SERVER,
        Case(_calls(20, OK=96, INTERNAL=4, INVALID_ARGUMENT=50), 20),
    ),
    Alert(
        "DragomanRefusals",
        "dragoman:refusals:ratio5m > 0.05",
        5,
        "warning",
        "More than 5 % of the calls are refused through no fault of the caller.",
        Case(_refused(20, 6), 20),
        _SERVER,
        Case(_refused(20, 4), 20),
    ),
    _burn(
        "DragomanLatencyBurnsFast",
        FAST_BURN,
        ("5m", "1h"),
        2,
        90,
        "At the current rate of slow calls, the monthly allowance is used up in two days.",
    ),
    _burn(
        "DragomanLatencyBurnsSlowly",
        SLOW_BURN,
        ("30m", "6h"),
        15,
        480,
        "At the current rate of slow calls, the monthly allowance is used up in five days.",
    ),
    _queue("texts", "dragoman_queue_sequences"),
    _queue("tokens", "dragoman_queue_tokens"),
    Alert(
        "DragomanMemoryNearBound",
        "dragoman:memory:ratio > 0.9",
        5,
        "critical",
        "The process uses more than 90 % of its memory limit.",
        Case(_process({"process_resident_memory_bytes": "95x20", "dragoman_memory_limit_bytes": "100x20"}), 10),
        _SERVER,
        Case(_process({"process_resident_memory_bytes": "85x20", "dragoman_memory_limit_bytes": "100x20"}), 10),
    ),
    Alert(
        "DragomanMemoryGrows",
        "dragoman:memory_growth_a_day:ratio2h > 1",
        120,
        "warning",
        "Memory use has grown for hours and would double within a day.",
        Case(_process({"process_resident_memory_bytes": "1000+2x300"}), 280),
        _SERVER,
        # A start, then a burst an hour later whose memory is kept.
        Case(_process({"process_resident_memory_bytes": "200 1000x60 1500x400"}), 400),
    ),
    Alert(
        "DragomanOutputsLoop",
        'dragoman:finished:ratio15m{reason="repetition"} > 0.05',
        15,
        "warning",
        "More than 5 % of the outputs were stopped because they repeated themselves; the model may be faulty.",
        Case(_ended(40, end=92, length=2, repetition=6), 40),
        {**_MODEL, "reason": "repetition"},
        Case(_ended(40, end=94, length=2, repetition=4), 40),
    ),
    Alert(
        "DragomanOutputsCut",
        'dragoman:finished:ratio15m{reason="length"} > 0.3',
        15,
        "warning",
        "More than 30 % of the outputs reached their length limit; the model may be faulty, or the limits too low.",
        Case(_ended(40, end=60, length=40, repetition=0), 40),
        {**_MODEL, "reason": "length"},
        Case(_ended(40, end=80, length=20, repetition=0), 40),
    ),
    Alert(
        "DragomanProviderNotAsConfigured",
        "dragoman_provider_as_configured < 1",
        1,
        "warning",
        "The model does not run on the configured provider; most likely it runs on the CPU beside an idle GPU.",
        Case(_gauges({"dragoman_provider_as_configured": "0x10"}), 5),
        _MODEL,
        Case(_gauges({"dragoman_provider_as_configured": "1x10"}), 5),
    ),
    Alert(
        "DragomanReplacementRefused",
        'increase(dragoman_replacements_total{outcome="refused"}[1h]) > 0',
        0,
        "warning",
        "A new bundle version was rejected; the old version keeps serving.",
        Case({_series("dragoman_replacements_total", **_MODEL, outcome="refused"): "0 0 1x30"}, 10),
        {**_MODEL, "outcome": "refused"},
        Case({_series("dragoman_replacements_total", **_MODEL, outcome="replaced"): "0 0 1x30"}, 10),
    ),
)
