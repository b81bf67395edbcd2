"""The `dragoman` command group: imports a subcommand only when it runs, and reports each error in one line.

Other packages add subcommands through the entry point group `dragoman.commands`. A subcommand whose dependencies are
missing is still listed, and names the extra to install.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from dragoman.service.system.process import own_version

ENTRY_POINTS = "dragoman.commands"

OWN = ("bench", "embed", "info", "serve", "translate", "verify")
"""Subcommands of the service: each is a function in the module of the same name."""

SUMMARIES = {
    "bench": "Measure the throughput of a bundle on this machine.",
    "embed": "Turn texts into vectors.",
    "export": "Export CHECKPOINT to BUNDLE, and prove the export.",
    "info": "Show the models, limits and memory of a server.",
    "serve": "Serve bundles over gRPC until SIGTERM or SIGINT.",
    "train": "Train a model.",
    "translate": "Translate texts.",
    "verify": "Replay a bundle's golden answers on this machine.",
}
"""Summaries for `--help`, which must not import the subcommands: torch alone takes seconds."""


class Commands(click.Group):
    """Subcommands by name, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, including subcommands with missing dependencies."""
        return sorted({*OWN, *_added()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or a stand-in that names the extra to install; None for an unknown name."""
        if cmd_name in OWN:
            command: click.Command = getattr(import_module(f"dragoman.service.cli.{cmd_name}"), cmd_name)
            return command
        entry = _added().get(cmd_name)
        return None if entry is None else _load(entry)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit with a status; an error is one line on stderr."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            click.echo(f"Error: {_one_line(error)}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("Aborted.", err=True)
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in SUMMARIES:
            return SUMMARIES[name]
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str()


@click.group(cls=Commands, context_settings={"max_content_width": 120})
@click.version_option(own_version(), prog_name="dragoman")
def main() -> None:
    """Exports trained encoder-decoder Transformers to ONNX, proves the export, and serves them over gRPC."""


def _added() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _load(entry: EntryPoint) -> click.Command:
    try:
        command: click.Command = entry.load()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "dragoman":
            raise
        return _Missing(entry.name, error.name)
    return command


class _Missing(click.Command):
    """Stand-in for a command with a missing dependency."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(
            name, help=SUMMARIES.get(name), context_settings={"ignore_unknown_options": True}, add_help_option=False
        )
        self.params.append(click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED))
        self._module = module

    def invoke(self, ctx: click.Context) -> Any:
        raise click.ClickException(
            f"`dragoman {self.name}` needs {self._module}, which is not installed: "
            f"pip install '.[{self.name}]' in a clone of dragoman"
        )


def _one_line(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message.removesuffix('.')}. See {error.ctx.command_path} --help."
    return message
