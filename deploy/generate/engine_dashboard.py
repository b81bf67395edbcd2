"""The dashboard for performance tuning."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.generate.panels import PanelBuilder, bucket_heatmap, dashboard, time_series
from deploy.generate.query import CALLS, Query, quantiles, rate


def engine() -> Dashboard:
    """Build the dashboard."""
    return dashboard(
        "dragoman-engine",
        "Dragoman: Engine",
        "Where does the time go, how full are the batches, and how long are the texts?",
        {
            "Where does the time go?": (*_text_times(), *_call_times()),
            "How full are the batches?": (*_batches(), *_waste()),
            "How long are the texts?": _lengths(),
            "How full are the queue and the cache?": _queue_and_cache(),
        },
    )


def _text_times() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Phases of a text, stacked",
            "Mean time in each phase: queue, encode and decode per text, tokenize and detokenize per call.",
            "s",
            Query(
                """sum by (phase) (rate(dragoman_phase_seconds_sum{$MODEL}[$__rate_interval]))
                / sum by (phase) (rate(dragoman_phase_seconds_count{$MODEL}[$__rate_interval]))""",
                "{{phase}}",
            ),
            stacked=True,
        ),
        time_series(
            "Time to first token",
            "From entering the queue to the first token of the output.",
            "s",
            *quantiles("dragoman_time_to_first_token_seconds", "$MODEL"),
        ),
        time_series(
            "Step time",
            "One step gives each running text one token.",
            "s",
            *quantiles("dragoman_step_seconds", "$MODEL"),
        ),
    )


def _call_times() -> tuple[PanelBuilder, ...]:
    return (
        bucket_heatmap(
            "Call duration", "Number of calls by duration, all methods.", "s", "grpc_server_handling_seconds", CALLS
        ),
        time_series(
            "Phases, 95th percentile",
            "95 % of the texts, or calls, complete the phase within this time.",
            "s",
            Query(
                """histogram_quantile(0.95, sum by (le, phase)
                (rate(dragoman_phase_seconds_bucket{$MODEL}[$__rate_interval])))""",
                "{{phase}} p95",
            ),
        ),
        time_series(
            "Time spent in steps",
            "Share of each second, added up over the lanes. Below 100 % per lane, the lane was encoding or idle.",
            "percentunit",
            Query("sum by (instance) (rate(dragoman_step_seconds_sum{$MODEL}[$__rate_interval]))", "{{instance}}"),
        ),
    )


def _batches() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Tokens per second",
            "Source tokens encoded, and output tokens decoded.",
            "suffix: tokens/s",
            rate("dragoman_tokens_total", '$MODEL,kind=~"source|output"', "kind"),
        ),
        time_series(
            "Texts per step",
            "Mean over the steps, with the number of slots in all lanes.",
            "short",
            Query(
                """sum(rate(dragoman_batch_rows_sum{$MODEL}[$__rate_interval]))
                / sum(rate(dragoman_batch_rows_count{$MODEL}[$__rate_interval]))""",
                "mean",
            ),
            Query("max(dragoman_cache_slots{$MODEL})", "slots"),
        ),
        bucket_heatmap(
            "Distribution of texts per step",
            "Steps by number of texts.",
            "short",
            "dragoman_batch_rows",
            "$MODEL",
        ),
    )


def _waste() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Encoder padding",
            "Share of the encoded positions without a token: texts of unequal length are encoded together.",
            "percentunit",
            Query(
                """sum(rate(dragoman_tokens_total{$MODEL,kind="padding"}[$__rate_interval]))
                / sum(rate(dragoman_tokens_total{$MODEL,kind=~"padding|source"}[$__rate_interval]))""",
                "padding",
            ),
            maximum=1,
        ),
        time_series(
            "Wasted output",
            "Share of output tokens never delivered: the caller had gone, or they were generated a second time.",
            "percentunit",
            Query(
                """sum(rate(dragoman_tokens_total{$MODEL,kind="wasted"}[$__rate_interval]))
                / sum(rate(dragoman_tokens_total{$MODEL,kind="output"}[$__rate_interval]))""",
                "wasted",
            ),
        ),
        time_series(
            "Failed model runs",
            "By run and cause; a run that fails for lack of memory is retried in smaller parts.",
            "suffix: runs/s",
            rate("dragoman_run_failures_total", "$MODEL", "run, cause", "{{run}}: {{cause}}"),
        ),
    )


def _lengths() -> tuple[PanelBuilder, ...]:
    return (
        bucket_heatmap(
            "Source length", "Number of texts by source tokens.", "short", "dragoman_source_tokens", "$MODEL"
        ),
        bucket_heatmap("Output length", "Number of outputs by tokens.", "short", "dragoman_output_tokens", "$MODEL"),
        time_series(
            "Texts by target language",
            "Texts of answered calls; texts to Embed have no target language and count as other.",
            "suffix: texts/s",
            rate(
                "dragoman_texts_total",
                "$MODEL",
                "operation, target_language",
                "{{operation}} {{target_language}}",
            ),
        ),
    )


def _queue_and_cache() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Queued tokens",
            "Source tokens and maximum output tokens of the queued texts, with the limit.",
            "short",
            Query("sum by (instance) (dragoman_queue_tokens{$MODEL})", "queued, {{instance}}"),
            Query("sum by (instance) (dragoman_queue_tokens_limit{$MODEL})", "limit, {{instance}}"),
        ),
        time_series(
            "Cache rung",
            "Token positions per slot: the rung that the longest running text needs. "
            "Every step computes over all positions.",
            "short",
            Query("max by (cache) (dragoman_cache_positions{$MODEL})", "{{cache}}"),
        ),
        time_series(
            "Cache use",
            "Bytes that hold tokens of running texts, as a share of the reserved bytes.",
            "percentunit",
            Query(
                """sum by (instance) (dragoman_memory_bytes{$MODEL,part="cache_used"})
                / sum by (instance) (dragoman_memory_bytes{$MODEL,part="cache_reserved"})""",
                "{{instance}}",
            ),
            maximum=1,
        ),
        time_series(
            "Start-up time",
            "Time to load the model, and time to warm it up.",
            "s",
            Query("dragoman_model_load_seconds{$MODEL}", "loading, {{instance}}"),
            Query("dragoman_warmup_seconds{$MODEL}", "warm-up, {{instance}}"),
        ),
    )
