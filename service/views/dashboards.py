"""The three dashboards: for the person on call, for the person who tunes, and for whoever asks where memory goes."""

from dragoman.service.metrics import OBJECTIVE_SHARE
from dragoman.service.servicer import SERVICE
from dragoman.service.views.alerts import FAST_BURN, SLOW_BURN
from dragoman.service.views.panels import Color, Dashboard, Panel, Query, Row

WITHOUT_DEVICE = "Empty where there is no GPU."
"""Said of panels that need one."""

QUANTILES = (0.5, 0.95, 0.99)
SMALL = 4
"""Width of a single number, and its height."""

SLOW_CALLS_ALLOWED = 1 - OBJECTIVE_SHARE


def _quantiles(name: str, matchers: str, by: str = "", legend: str = "") -> tuple[Query, ...]:
    """The usual quantiles of the histogram `name`, one line for each value of the label `by`."""
    kept = f"le, {by}" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by ({kept}) (rate({name}_bucket{{{matchers}}}[$__rate_interval])))",
            f"{legend} p{quantile * 100:g}".strip(),
        )
        for quantile in QUANTILES
    )


def _rate(name: str, matchers: str, by: str, legend: str = "") -> Query:
    """How fast the counter `name` grows, by the label `by`."""
    return Query(f"sum by ({by}) (rate({name}{{{matchers}}}[$__rate_interval]))", legend or f"{{{{{by}}}}}")


def _heatmap(title: str, description: str, unit: str, name: str, matchers: str) -> Panel:
    query = Query(f"sum by (le) (increase({name}_bucket{{{matchers}}}[$__rate_interval]))", "{{le}}")
    return Panel(title, description, unit, (query,), kind="heatmap")


def _number(
    title: str, description: str, unit: str, query: str, *steps: tuple[float, Color], width: int = SMALL
) -> Panel:
    return Panel(title, description, unit, (Query(query),), "stat", width, SMALL, steps=steps)


CALLS = f'grpc_service="{SERVICE}",$SERVER'

OVERVIEW = Dashboard(
    "dragoman-overview",
    "Dragoman: Overview",
    "Is it up, how fast is it, what does it refuse, and what does it do with its memory?",
    (
        Row(
            "Is it up?",
            (
                _number(
                    "Servers that answer calls",
                    "How many servers are ready.",
                    "short",
                    "sum(dragoman_ready{$MODEL})",
                ),
                _number(
                    "Servers not ready",
                    "Servers that run, but do not answer: they start, stop, or hang.",
                    "short",
                    "count(dragoman_ready{$MODEL}) - sum(dragoman_ready{$MODEL})",
                    (1, "red"),
                ),
                _number(
                    "Calls a second",
                    "Calls that began, of all methods.",
                    "reqps",
                    f"sum(rate(grpc_server_started_total{{{CALLS}}}[$__rate_interval]))",
                ),
                _number(
                    "Calls that failed",
                    "The share of calls that ended with an error of the server, within 5 minutes.",
                    "percentunit",
                    "max(dragoman:errors:ratio5m{$SERVER})",
                    (0.01, "orange"),
                    (0.05, "red"),
                ),
                _number(
                    "Calls slower than the objective",
                    f"The larger share of Translate and Embed, within 5 minutes; {SLOW_CALLS_ALLOWED:.0%} may be.",
                    "percentunit",
                    "max(dragoman:slow_calls:ratio5m)",
                    (SLOW_CALLS_ALLOWED, "orange"),
                    (round(FAST_BURN * SLOW_CALLS_ALLOWED, 6), "red"),
                ),
                _number(
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
                _number(
                    "Up since",
                    "How long ago the server began that restarted last.",
                    "s",
                    "time() - max(process_start_time_seconds{$SERVER})",
                ),
                _number(
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
                        *_quantiles("grpc_server_handling_seconds", f'{CALLS},grpc_method="Translate"'),
                        Query('max(dragoman_objective_seconds{grpc_method="Translate",$SERVER})', "objective"),
                    ),
                ),
                Panel(
                    "How long an Embed call takes",
                    "Half of the calls, 95 % and 99 % of them are faster than this; the objective beside them.",
                    "s",
                    (
                        *_quantiles("grpc_server_handling_seconds", f'{CALLS},grpc_method="Embed"'),
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
                    (_rate("grpc_server_started_total", CALLS, "grpc_method"),),
                    width=6,
                ),
                Panel(
                    "Calls by status",
                    "Calls that ended, by gRPC's status; OK is the one that is wanted.",
                    "reqps",
                    (_rate("grpc_server_handled_total", CALLS, "grpc_code"),),
                    width=6,
                    stacked=True,
                ),
                Panel(
                    "Calls refused",
                    "Calls that the engine never saw, by the reason that the caller was given.",
                    "reqps",
                    (_rate("dragoman_refused_total", "$SERVER", "reason"),),
                    width=6,
                    stacked=True,
                ),
                Panel(
                    "How texts ended",
                    "end is the model's own end; length and repetition were stopped; nobody waited for the others.",
                    "suffix: texts/s",
                    (_rate("dragoman_finished_total", "$MODEL", "reason"),),
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

ENGINE = Dashboard(
    "dragoman-engine",
    "Dragoman: Engine",
    "Where does the time go, how full are the batches, and how long are the texts?",
    (
        Row(
            "Where does the time go?",
            (
                Panel(
                    "Phases of a text, one upon the other",
                    "The mean time in each: queue, encode and decode of a text, tokenize and detokenize of a call.",
                    "s",
                    (
                        Query(
                            """sum by (phase) (rate(dragoman_phase_seconds_sum{$MODEL}[$__rate_interval]))
                            / sum by (phase) (rate(dragoman_phase_seconds_count{$MODEL}[$__rate_interval]))""",
                            "{{phase}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "How long a text waits for its first token",
                    "From entering the queue to the first token of the output.",
                    "s",
                    _quantiles("dragoman_time_to_first_token_seconds", "$MODEL"),
                ),
                Panel(
                    "How long a step takes",
                    "One step gives each running text one token.",
                    "s",
                    _quantiles("dragoman_step_seconds", "$MODEL"),
                ),
                _heatmap(
                    "How long calls take",
                    "How many calls took how long, of all methods.",
                    "s",
                    "grpc_server_handling_seconds",
                    CALLS,
                ),
                Panel(
                    "The slow end of each phase",
                    "95 % of the texts, or calls, are through the phase in this time.",
                    "s",
                    (
                        Query(
                            "histogram_quantile(0.95, sum by (le, phase) "
                            "(rate(dragoman_phase_seconds_bucket{$MODEL}[$__rate_interval])))",
                            "{{phase}} p95",
                        ),
                    ),
                ),
                Panel(
                    "The part of the time that steps take",
                    "Of each second; what is missing to 1 a lane went to encoding, or there was nothing to do.",
                    "percentunit",
                    (
                        Query(
                            "sum by (instance) (rate(dragoman_step_seconds_sum{$MODEL}[$__rate_interval]))",
                            "{{instance}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "How full are the batches?",
            (
                Panel(
                    "Tokens a second",
                    "Source tokens as encoded, and output tokens as decoded.",
                    "suffix: tokens/s",
                    (_rate("dragoman_tokens_total", '$MODEL,kind=~"source|output"', "kind"),),
                ),
                Panel(
                    "Texts in a step",
                    "The mean of the steps, beside the most that there is room for in all lanes.",
                    "short",
                    (
                        Query(
                            """sum(rate(dragoman_batch_rows_sum{$MODEL}[$__rate_interval]))
                            / sum(rate(dragoman_batch_rows_count{$MODEL}[$__rate_interval]))""",
                            "mean",
                        ),
                        Query("max(dragoman_cache_slots{$MODEL})", "most"),
                    ),
                ),
                _heatmap(
                    "How full steps are",
                    "How many steps had how many texts.",
                    "short",
                    "dragoman_batch_rows",
                    "$MODEL",
                ),
                Panel(
                    "Padding in the encoder",
                    "The share of what was encoded that is no token of any text: texts of unlike length side by side.",
                    "percentunit",
                    (
                        Query(
                            """sum(rate(dragoman_tokens_total{$MODEL,kind="padding"}[$__rate_interval]))
                            / sum(rate(dragoman_tokens_total{$MODEL,kind=~"padding|source"}[$__rate_interval]))""",
                            "padding",
                        ),
                    ),
                    most=1,
                ),
                Panel(
                    "Output that nobody received",
                    "The share of the output tokens that was made for callers who had gone, or had to be made anew.",
                    "percentunit",
                    (
                        Query(
                            """sum(rate(dragoman_tokens_total{$MODEL,kind="wasted"}[$__rate_interval]))
                            / sum(rate(dragoman_tokens_total{$MODEL,kind="output"}[$__rate_interval]))""",
                            "wasted",
                        ),
                    ),
                ),
                Panel(
                    "Runs of the model that failed",
                    "By what was run and why; a run for want of memory is tried again in smaller parts.",
                    "suffix: runs/s",
                    (_rate("dragoman_run_failures_total", "$MODEL", "run, cause", "{{run}}: {{cause}}"),),
                ),
            ),
        ),
        Row(
            "How long are the texts?",
            (
                _heatmap(
                    "Length of the sources",
                    "How many texts had how many tokens.",
                    "short",
                    "dragoman_source_tokens",
                    "$MODEL",
                ),
                _heatmap(
                    "Length of the outputs",
                    "How many outputs had how many tokens.",
                    "short",
                    "dragoman_output_tokens",
                    "$MODEL",
                ),
                Panel(
                    "Texts by target language",
                    "Texts of answered calls; those of Embed have none and count as other.",
                    "suffix: texts/s",
                    (
                        _rate(
                            "dragoman_texts_total",
                            "$MODEL",
                            "operation, target_language",
                            "{{operation}} {{target_language}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "What holds the queue and the cache?",
            (
                Panel(
                    "Tokens that wait",
                    "Sources and longest outputs together, beside the most that may wait.",
                    "short",
                    (
                        Query("sum by (instance) (dragoman_queue_tokens{$MODEL})", "waiting, {{instance}}"),
                        Query("sum by (instance) (dragoman_queue_tokens_limit{$MODEL})", "most, {{instance}}"),
                    ),
                ),
                Panel(
                    "The cache's ladder",
                    "Tokens that a slot has room for: the rung that the longest running text needs. Every step works "
                    "over all of it.",
                    "short",
                    (Query("max by (cache) (dragoman_cache_positions{$MODEL})", "{{cache}}"),),
                ),
                Panel(
                    "The part of the cache in use",
                    "Bytes that hold tokens of running texts, of all that is reserved.",
                    "percentunit",
                    (
                        Query(
                            """sum by (instance) (dragoman_memory_bytes{$MODEL,part="cache_used"})
                            / sum by (instance) (dragoman_memory_bytes{$MODEL,part="cache_reserved"})""",
                            "{{instance}}",
                        ),
                    ),
                    most=1,
                ),
                Panel(
                    "How long the start took",
                    "Reading the model, and warming it up.",
                    "s",
                    (
                        Query("dragoman_model_load_seconds{$MODEL}", "loading, {{instance}}"),
                        Query("dragoman_warmup_seconds{$MODEL}", "warming up, {{instance}}"),
                    ),
                ),
            ),
        ),
    ),
)

MEMORY = Dashboard(
    "dragoman-memory",
    "Dragoman: Memory",
    "How much memory is used, by what, and does it grow?",
    (
        Row(
            "How much is there?",
            (
                _number(
                    "Used of the bound",
                    "How much of the memory that it may use the fullest server uses.",
                    "percentunit",
                    "max(dragoman:memory:ratio{$SERVER})",
                    (0.8, "orange"),
                    (0.9, "red"),
                    width=6,
                ),
                _number(
                    "Used now",
                    "Of all chosen servers together.",
                    "bytes",
                    "sum(process_resident_memory_bytes{$SERVER})",
                    width=6,
                ),
                _number(
                    "Weights",
                    "The model's weights, as they lie in the bundle.",
                    "bytes",
                    'sum(dragoman_memory_bytes{$MODEL,part="weights"})',
                    width=6,
                ),
                _number(
                    "Cache reserved",
                    "What is allocated for the running texts.",
                    "bytes",
                    'sum(dragoman_memory_bytes{$MODEL,part="cache_reserved"})',
                    width=6,
                ),
            ),
        ),
        Row(
            "The process",
            (
                Panel(
                    "Resident memory and its bound",
                    "What the kernel counts for the process, beside its container's limit, or the machine's memory.",
                    "bytes",
                    (
                        Query("process_resident_memory_bytes{$SERVER}", "resident, {{instance}}"),
                        Query("dragoman_memory_limit_bytes{$SERVER}", "bound, {{instance}}"),
                    ),
                ),
                Panel(
                    "Address space",
                    "What the process has asked for; most of it is never touched.",
                    "bytes",
                    (Query("process_virtual_memory_bytes{$SERVER}", "{{instance}}"),),
                ),
                Panel(
                    "Growth in a day, at the present rate",
                    "By the last two hours, as a share of what is used; high for a while after a start or a burst.",
                    "percentunit",
                    (Query("dragoman:memory_growth_a_day:ratio2h{$SERVER}", "{{instance}}"),),
                    least=None,
                ),
            ),
        ),
        Row(
            "The engine",
            (
                Panel(
                    "What the engine holds",
                    "Weights as they lie in the bundle, cache as allocated, buffers for inputs and outputs. Not the "
                    "runtime's own working memory, of which it gives no figures.",
                    "bytes",
                    (
                        Query(
                            'sum by (part) (dragoman_memory_bytes{$MODEL,part=~"weights|cache_reserved|buffers"})',
                            "{{part}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "The cache: reserved and used",
                    "It grows with the longest running text, and falls back when the server rests.",
                    "bytes",
                    (Query('sum by (part) (dragoman_memory_bytes{$MODEL,part=~"cache_.*"})', "{{part}}"),),
                ),
                Panel(
                    "Slots in use",
                    "Texts in the cache, beside the most that it has room for.",
                    "short",
                    (
                        Query("sum(dragoman_active_rows{$MODEL})", "running"),
                        Query("sum(dragoman_cache_slots{$MODEL})", "most"),
                    ),
                ),
            ),
        ),
        Row(
            "Beside the memory",
            (
                Panel(
                    "Open files and connections",
                    "Beside the most that the process may have.",
                    "short",
                    (
                        Query("process_open_fds{$SERVER}", "open, {{instance}}"),
                        Query("process_max_fds{$SERVER}", "most, {{instance}}"),
                    ),
                ),
                Panel(
                    "Refused memory",
                    "Runs of the model for which there was not the memory, within 5 minutes.",
                    "suffix: runs",
                    (
                        Query(
                            'sum by (run) (increase(dragoman_run_failures_total{$MODEL,cause="memory"}[5m]))', "{{run}}"
                        ),
                    ),
                ),
                Panel(
                    "GPU memory",
                    f"Used by all processes, and there in all. {WITHOUT_DEVICE}",
                    "bytes",
                    (Query("dragoman_device_memory_bytes{$SERVER}", "{{kind}}, GPU {{device}}, {{instance}}"),),
                ),
            ),
        ),
    ),
)

DASHBOARDS = {"overview": OVERVIEW, "engine": ENGINE, "memory": MEMORY}
"""By the name of their file."""
