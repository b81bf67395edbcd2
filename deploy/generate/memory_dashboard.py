"""The dashboard for whoever asks where memory goes."""

from deploy.generate.panels import Dashboard, Panel, Query, Row
from deploy.generate.shared_panels import number

WITHOUT_DEVICE = "Empty where there is no GPU."
"""Said of panels that need one."""

MEMORY = Dashboard(
    "dragoman-memory",
    "Dragoman: Memory",
    "How much memory is used, by what, and does it grow?",
    (
        Row(
            "How much is there?",
            (
                number(
                    "Used of the bound",
                    "How much of the memory that it may use the fullest server uses.",
                    "percentunit",
                    "max(dragoman:memory:ratio{$SERVER})",
                    (0.8, "orange"),
                    (0.9, "red"),
                    width=6,
                ),
                number(
                    "Used now",
                    "Of all chosen servers together.",
                    "bytes",
                    "sum(process_resident_memory_bytes{$SERVER})",
                    width=6,
                ),
                number(
                    "Weights",
                    "Of the models' files of weights, what is resident; the runtime's own copies are buffers.",
                    "bytes",
                    'sum(dragoman_memory_bytes{$MODEL,part="weights"})',
                    width=6,
                ),
                number(
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
                    "Where memory goes",
                    "Each part measured by itself; together about what the kernel counts. Buffers are what loading a "
                    "model took besides its weights; working is what runs have taken of late; interpreter is all that "
                    "was allocated before the first model.",
                    "bytes",
                    (
                        Query(
                            "sum by (part) (dragoman_memory_bytes"
                            '{$MODEL,part=~"weights|buffers|working|cache_resident"})',
                            "{{part}}",
                        ),
                        Query("sum by (part) (dragoman_process_memory_bytes{$SERVER})", "{{part}}"),
                    ),
                    stacked=True,
                ),
                Panel(
                    "The cache: reserved, resident and used",
                    "It grows with the longest running text, and falls back when the server rests. Only what rows have "
                    "touched is resident.",
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
