"""`python -m dragoman.service.cli.documentation docs` writes the pages that are made from the code."""

import sys
from pathlib import Path

import click
from prometheus_client import CollectorRegistry

from dragoman.service.cli.group import main
from dragoman.service.telemetry.metrics import Metrics

WIDTH = 100

NOTE = "<!-- Made by `python -m dragoman.service.cli.documentation docs`: change the code, not this page. -->"


def cli_page() -> str:
    """docs/cli.md: the help of the command and of each of its subcommands."""
    whole = click.Context(main, info_name="dragoman", terminal_width=WIDTH)
    sections = [NOTE, "# Command line", _help(whole)]
    for name in main.list_commands(whole):
        command = main.get_command(whole, name)
        if command is not None:
            context = click.Context(command, parent=whole, info_name=name, terminal_width=WIDTH)
            sections += [f"## dragoman {name}", _help(context)]
    return "\n\n".join(sections) + "\n"


def metrics_page() -> str:
    """docs/metrics.md: every metric with its kind, its labels and what it says."""
    families = Metrics(CollectorRegistry()).families
    return "\n".join(
        [
            NOTE,
            "",
            "# Metrics",
            "",
            "On `/metrics` of the metrics port, beside the `process_` series of the Python client library: resident",
            "memory, processor time, start time, open files. [runbook.md](runbook.md) says what to do about an alert.",
            "",
            "| name | kind | labels | what it says |",
            "|---|---|---|---|",
            *(f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in families),
            "",
        ]
    )


def _help(context: click.Context) -> str:
    return f"```text\n{context.get_help()}\n```"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
    (folder / "metrics.md").write_text(metrics_page(), encoding="utf-8")
