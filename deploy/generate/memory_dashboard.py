"""The dashboard for memory use."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.generate.panels import PanelBuilder, dashboard, number, time_series
from deploy.generate.query import Query


def memory() -> Dashboard:
    """Build the dashboard."""
    return dashboard(
        "dragoman-memory",
        "Dragoman: Memory",
        "How much memory is used, by what, and does it grow?",
        {
            "How much is used?": _totals(),
            "The process": _process(),
            "The engine": _engine(),
            "Other resources": _other(),
        },
    )


def _totals() -> tuple[PanelBuilder, ...]:
    return (
        number(
            "Memory used of limit",
            "Memory use of the fullest server, as a share of its limit.",
            "percentunit",
            "max(dragoman:memory:ratio{$SERVER})",
            (0.8, "orange"),
            (0.9, "red"),
            width=6,
        ),
        number(
            "Memory used",
            "Resident memory of all selected servers together.",
            "bytes",
            "sum(process_resident_memory_bytes{$SERVER})",
            width=6,
        ),
        number(
            "Weights",
            "Resident part of the models' weight files; the runtime's own copies count as buffers.",
            "bytes",
            'sum(dragoman_memory_bytes{$MODEL,part="weights"})',
            width=6,
        ),
        number(
            "Cache reserved",
            "Memory allocated for the running texts.",
            "bytes",
            'sum(dragoman_memory_bytes{$MODEL,part="cache_reserved"})',
            width=6,
        ),
    )


def _process() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Resident memory and limit",
            "Memory of the process by the kernel's count, with the container's limit or the machine's memory.",
            "bytes",
            Query("process_resident_memory_bytes{$SERVER}", "resident, {{instance}}"),
            Query("dragoman_memory_limit_bytes{$SERVER}", "limit, {{instance}}"),
        ),
        time_series(
            "Address space",
            "Virtual memory of the process; most of it is never touched.",
            "bytes",
            Query("process_virtual_memory_bytes{$SERVER}", "{{instance}}"),
        ),
        time_series(
            "Growth per day at the current rate",
            "From the last two hours, as a share of the memory in use; high for a while after a start or a burst.",
            "percentunit",
            Query("dragoman:memory_growth_a_day:ratio2h{$SERVER}", "{{instance}}"),
            minimum=None,
        ),
    )


def _engine() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Memory by part",
            "Each part is measured on its own; the sum is close to the kernel's count. "
            "buffers: memory taken by loading a model, apart from its weights. "
            "working: memory taken by recent runs. "
            "interpreter: memory allocated before the first model.",
            "bytes",
            Query(
                'sum by (part) (dragoman_memory_bytes{$MODEL,part=~"weights|buffers|working|cache_resident"})',
                "{{part}}",
            ),
            Query("sum by (part) (dragoman_process_memory_bytes{$SERVER})", "{{part}}"),
            stacked=True,
        ),
        time_series(
            "Cache: reserved, resident and used",
            "The cache grows with the longest running text, and shrinks when the server is idle. "
            "Only memory that rows have touched is resident.",
            "bytes",
            Query('sum by (part) (dragoman_memory_bytes{$MODEL,part=~"cache_.*"})', "{{part}}"),
        ),
        time_series(
            "Slots in use",
            "Texts in the cache, with the number of slots.",
            "short",
            Query("sum(dragoman_active_rows{$MODEL})", "running"),
            Query("sum(dragoman_cache_slots{$MODEL})", "slots"),
        ),
    )


def _other() -> tuple[PanelBuilder, ...]:
    return (
        time_series(
            "Open files and connections",
            "File descriptors of the process, with their limit.",
            "short",
            Query("process_open_fds{$SERVER}", "open, {{instance}}"),
            Query("process_max_fds{$SERVER}", "limit, {{instance}}"),
        ),
        time_series(
            "Runs failed for lack of memory",
            "Number of failed model runs, over 5 minutes.",
            "suffix: runs",
            Query('sum by (run) (increase(dragoman_run_failures_total{$MODEL,cause="memory"}[5m]))', "{{run}}"),
        ),
        time_series(
            "GPU memory",
            "Used by all processes, and in total. Empty without a GPU.",
            "bytes",
            Query("dragoman_device_memory_bytes{$SERVER}", "{{kind}}, GPU {{device}}, {{instance}}"),
        ),
    )
