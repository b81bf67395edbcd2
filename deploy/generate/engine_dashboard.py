"""The dashboard for the person who tunes."""

from deploy.generate.panels import Dashboard, Panel, Query, Row
from deploy.generate.shared_panels import CALLS, heatmap, quantiles, rate

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
                    quantiles("dragoman_time_to_first_token_seconds", "$MODEL"),
                ),
                Panel(
                    "How long a step takes",
                    "One step gives each running text one token.",
                    "s",
                    quantiles("dragoman_step_seconds", "$MODEL"),
                ),
                heatmap(
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
                    (rate("dragoman_tokens_total", '$MODEL,kind=~"source|output"', "kind"),),
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
                heatmap(
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
                    (rate("dragoman_run_failures_total", "$MODEL", "run, cause", "{{run}}: {{cause}}"),),
                ),
            ),
        ),
        Row(
            "How long are the texts?",
            (
                heatmap(
                    "Length of the sources",
                    "How many texts had how many tokens.",
                    "short",
                    "dragoman_source_tokens",
                    "$MODEL",
                ),
                heatmap(
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
                        rate(
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
