"""The dashboard for the person on call."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.generate.alerts import FAST_BURN, SLOW_BURN
from deploy.generate.panels import PanelBuilder, dashboard, number, series_names, time_series
from deploy.generate.query import CALLS, Query, quantiles, rate
from dragoman.service.telemetry.metrics import OBJECTIVE_SHARE

SLOW_CALLS_ALLOWED = 1 - OBJECTIVE_SHARE


def overview() -> Dashboard:
    """Build the dashboard."""
    return dashboard(
        "dragoman-overview",
        "Dragoman: Overview",
        "Is it up, how fast is it, what does it refuse, and how much memory does it use?",
        {
            "Is it up?": (*_health(), *_placement()),
            "How fast is it?": _latency(),
            "How much is requested, and how much refused?": _traffic(),
            "How full is it?": _capacity(),
        },
    )


def _health() -> tuple[PanelBuilder, ...]:
    return (
        number("Servers ready", "Number of servers that answer calls.", "short", "sum(dragoman_ready{$MODEL})"),
        number(
            "Servers not ready",
            "Servers that run but do not answer calls: starting, stopping or hung.",
            "short",
            "count(dragoman_ready{$MODEL}) - sum(dragoman_ready{$MODEL})",
            (1, "red"),
        ),
        number(
            "Calls per second",
            "Calls started, all methods.",
            "reqps",
            f"sum(rate(grpc_server_started_total{{{CALLS}}}[$__rate_interval]))",
        ),
        number(
            "Failed calls",
            "Share of calls that ended with a server error, over 5 minutes, on the worst server.",
            "percentunit",
            "max(dragoman:errors:ratio5m{$SERVER})",
            (0.01, "orange"),
            (0.05, "red"),
        ),
        number(
            "Calls slower than the objective",
            f"The larger share of Translate and Embed, over 5 minutes; {SLOW_CALLS_ALLOWED:.0%} is allowed.",
            "percentunit",
            "max(dragoman:slow_calls:ratio5m)",
            (SLOW_CALLS_ALLOWED, "orange"),
            (round(FAST_BURN * SLOW_CALLS_ALLOWED, 6), "red"),
        ),
        number(
            "Memory used of limit",
            "Memory use of the fullest server, as a share of its limit.",
            "percentunit",
            "max(dragoman:memory:ratio{$SERVER})",
            (0.8, "orange"),
            (0.9, "red"),
        ),
    )


def _placement() -> tuple[PanelBuilder, ...]:
    return (
        series_names(
            "Models and providers",
            "Every model with its version, precision and the provider that runs it.",
            Query("dragoman_model_info{$MODEL}", "{{model}} {{version}}, {{precision}}, {{provider}}, {{instance}}"),
            width=16,
        ),
        number(
            "Time since last restart",
            "Uptime of the server that restarted most recently.",
            "s",
            "time() - max(process_start_time_seconds{$SERVER})",
        ),
        number(
            "On the configured provider",
            "No if a model runs elsewhere than configured: for example on the CPU, beside an idle GPU.",
            "bool_yes_no",
            "min(dragoman_provider_as_configured{$MODEL})",
        ),
    )


def _latency() -> tuple[PanelBuilder, ...]:
    percentiles = "Median, 95th and 99th percentile, with the objective."
    return (
        *(
            time_series(
                f"{method} latency",
                percentiles,
                "s",
                *quantiles("grpc_server_handling_seconds", f'{CALLS},grpc_method="{method}"'),
                Query(f'max(dragoman_objective_seconds{{grpc_method="{method}",$SERVER}})', "objective"),
            )
            for method in ("Translate", "Embed")
        ),
        time_series(
            "Burn rate of the slow-call allowance",
            f"At 1, exactly as many calls are slow as the objective allows; alerts fire at {FAST_BURN:g} "
            f"and {SLOW_BURN:g}.",
            "suffix:×",
            Query(f"dragoman:slow_calls:ratio5m / {SLOW_CALLS_ALLOWED:g}", "{{grpc_method}}, 5 minutes"),
            Query(f"dragoman:slow_calls:ratio1h / {SLOW_CALLS_ALLOWED:g}", "{{grpc_method}}, 1 hour"),
        ),
    )


def _traffic() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Calls by method",
            "Calls started.",
            "reqps",
            rate("grpc_server_started_total", CALLS, "grpc_method"),
            width=6,
        ),
        time_series(
            "Calls by status",
            "Calls finished, by gRPC status; OK means success.",
            "reqps",
            rate("grpc_server_handled_total", CALLS, "grpc_code"),
            width=6,
            stacked=True,
        ),
        time_series(
            "Calls refused",
            "Calls refused before work on them began, by the reason reported to the caller.",
            "reqps",
            rate("dragoman_refused_total", "$SERVER", "reason"),
            width=6,
            stacked=True,
        ),
        time_series(
            "Texts finished",
            "By reason. end: the model ended the text; length, repetition: the engine stopped it; "
            "cancelled, deadline, failed: the text has no answer.",
            "suffix: texts/s",
            rate("dragoman_finished_total", "$MODEL", "reason"),
            width=6,
            stacked=True,
        ),
    )


def _capacity() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Queued texts",
            "Texts in the queue, with its limit; beyond the limit, calls are refused.",
            "short",
            Query("sum by (instance) (dragoman_queue_sequences{$MODEL})", "queued, {{instance}}"),
            Query("sum by (instance) (dragoman_queue_sequences_limit{$MODEL})", "limit, {{instance}}"),
            width=6,
        ),
        time_series(
            "Running texts",
            "Texts being translated now, with the number of slots.",
            "short",
            Query("sum by (instance) (dragoman_active_rows{$MODEL})", "running, {{instance}}"),
            Query("sum by (instance) (dragoman_cache_slots{$MODEL})", "slots, {{instance}}"),
            width=6,
        ),
        time_series(
            "Memory",
            "Resident memory of the process, with its limit: the container's, or the machine's memory.",
            "bytes",
            Query("process_resident_memory_bytes{$SERVER}", "used, {{instance}}"),
            Query("dragoman_memory_limit_bytes{$SERVER}", "limit, {{instance}}"),
            width=6,
        ),
        time_series(
            "CPUs in use",
            "CPU seconds per second.",
            "short",
            Query("rate(process_cpu_seconds_total{$SERVER}[$__rate_interval])", "{{instance}}"),
            width=6,
        ),
    )
