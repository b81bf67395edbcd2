"""The dashboard for the person on call."""

from deploy.generate.alerts import FAST_BURN, SLOW_BURN
from deploy.generate.panels import Dashboard, Panel, Query, Row
from deploy.generate.shared_panels import CALLS, SMALL, number, quantiles, rate
from dragoman.service.telemetry.metrics import OBJECTIVE_SHARE

SLOW_CALLS_ALLOWED = 1 - OBJECTIVE_SHARE

OVERVIEW = Dashboard(
    "dragoman-overview",
    "Dragoman: Overview",
    "Is it up, how fast is it, what does it refuse, and what does it do with its memory?",
    (
        Row(
            "Is it up?",
            (
                number(
                    "Servers that answer calls",
                    "How many servers are ready.",
                    "short",
                    "sum(dragoman_ready{$MODEL})",
                ),
                number(
                    "Servers not ready",
                    "Servers that run, but do not answer: they start, stop, or hang.",
                    "short",
                    "count(dragoman_ready{$MODEL}) - sum(dragoman_ready{$MODEL})",
                    (1, "red"),
                ),
                number(
                    "Calls a second",
                    "Calls that began, of all methods.",
                    "reqps",
                    f"sum(rate(grpc_server_started_total{{{CALLS}}}[$__rate_interval]))",
                ),
                number(
                    "Calls that failed",
                    "The share of calls that ended with an error of the server, within 5 minutes.",
                    "percentunit",
                    "max(dragoman:errors:ratio5m{$SERVER})",
                    (0.01, "orange"),
                    (0.05, "red"),
                ),
                number(
                    "Calls slower than the objective",
                    f"The larger share of Translate and Embed, within 5 minutes; {SLOW_CALLS_ALLOWED:.0%} may be.",
                    "percentunit",
                    "max(dragoman:slow_calls:ratio5m)",
                    (SLOW_CALLS_ALLOWED, "orange"),
                    (round(FAST_BURN * SLOW_CALLS_ALLOWED, 6), "red"),
                ),
                number(
                    "Memory of its bound",
                    "How much of the memory that it may use the fullest server uses.",
                    "percentunit",
                    "max(dragoman:memory:ratio{$SERVER})",
                    (0.8, "orange"),
                    (0.9, "red"),
                ),
                Panel(
                    "What runs where",
                    "Every model with its version and precision, and what it really runs on.",
                    "short",
                    (
                        Query(
                            "dragoman_model_info{$MODEL}",
                            "{{model}} {{version}}, {{precision}}, {{provider}}, {{instance}}",
                        ),
                    ),
                    kind="stat",
                    width=16,
                    height=SMALL,
                    names=True,
                ),
                number(
                    "Up since",
                    "How long ago the server began that restarted last.",
                    "s",
                    "time() - max(process_start_time_seconds{$SERVER})",
                ),
                number(
                    "Where it should run",
                    "0 if a model does not run where the settings want it: on the CPU beside an idle GPU, say.",
                    "bool_yes_no",
                    "min(dragoman_provider_as_configured{$MODEL})",
                ),
            ),
        ),
        Row(
            "How fast is it?",
            (
                Panel(
                    "How long a Translate call takes",
                    "Half of the calls, 95 % and 99 % of them are faster than this; the objective beside them.",
                    "s",
                    (
                        *quantiles("grpc_server_handling_seconds", f'{CALLS},grpc_method="Translate"'),
                        Query('max(dragoman_objective_seconds{grpc_method="Translate",$SERVER})', "objective"),
                    ),
                ),
                Panel(
                    "How long an Embed call takes",
                    "Half of the calls, 95 % and 99 % of them are faster than this; the objective beside them.",
                    "s",
                    (
                        *quantiles("grpc_server_handling_seconds", f'{CALLS},grpc_method="Embed"'),
                        Query('max(dragoman_objective_seconds{grpc_method="Embed",$SERVER})', "objective"),
                    ),
                ),
                Panel(
                    "How fast the allowance of slow calls is used up",
                    f"1 is as fast as the objective allows; alerts come at {FAST_BURN:g} and at {SLOW_BURN:g}.",
                    "suffix:×",
                    (
                        Query(f"dragoman:slow_calls:ratio5m / {SLOW_CALLS_ALLOWED:g}", "{{grpc_method}}, 5 minutes"),
                        Query(f"dragoman:slow_calls:ratio1h / {SLOW_CALLS_ALLOWED:g}", "{{grpc_method}}, 1 hour"),
                    ),
                ),
            ),
        ),
        Row(
            "What is asked, and what is refused?",
            (
                Panel(
                    "Calls by method",
                    "Calls that began.",
                    "reqps",
                    (rate("grpc_server_started_total", CALLS, "grpc_method"),),
                    width=6,
                ),
                Panel(
                    "Calls by status",
                    "Calls that ended, by gRPC's status; OK is the one that is wanted.",
                    "reqps",
                    (rate("grpc_server_handled_total", CALLS, "grpc_code"),),
                    width=6,
                    stacked=True,
                ),
                Panel(
                    "Calls refused",
                    "Calls that the engine never saw, by the reason that the caller was given.",
                    "reqps",
                    (rate("dragoman_refused_total", "$SERVER", "reason"),),
                    width=6,
                    stacked=True,
                ),
                Panel(
                    "How texts ended",
                    "end is the model's own end; length and repetition were stopped; nobody waited for the others.",
                    "suffix: texts/s",
                    (rate("dragoman_finished_total", "$MODEL", "reason"),),
                    width=6,
                    stacked=True,
                ),
            ),
        ),
        Row(
            "What does it do with its room?",
            (
                Panel(
                    "Texts that wait",
                    "In the queue, beside the most that may; beyond that, calls are refused.",
                    "short",
                    (
                        Query("sum by (instance) (dragoman_queue_sequences{$MODEL})", "waiting, {{instance}}"),
                        Query("sum by (instance) (dragoman_queue_sequences_limit{$MODEL})", "most, {{instance}}"),
                    ),
                    width=6,
                ),
                Panel(
                    "Texts that are translated",
                    "Side by side in this moment, beside the most that there is room for.",
                    "short",
                    (
                        Query("sum by (instance) (dragoman_active_rows{$MODEL})", "running, {{instance}}"),
                        Query("sum by (instance) (dragoman_cache_slots{$MODEL})", "most, {{instance}}"),
                    ),
                    width=6,
                ),
                Panel(
                    "Memory",
                    "Of the whole process, beside what bounds it: its container's limit, or the machine's memory.",
                    "bytes",
                    (
                        Query("process_resident_memory_bytes{$SERVER}", "used, {{instance}}"),
                        Query("dragoman_memory_limit_bytes{$SERVER}", "bound, {{instance}}"),
                    ),
                    width=6,
                ),
                Panel(
                    "Processors in use",
                    "Seconds of computing in each second.",
                    "short",
                    (Query("rate(process_cpu_seconds_total{$SERVER}[$__rate_interval])", "{{instance}}"),),
                    width=6,
                ),
            ),
        ),
    ),
)
