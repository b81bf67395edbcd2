"""The command itself: finds its subcommands only when they are called for, and reports every error in one line.

Other parts bring their subcommands through the entry points of the group `dragoman.commands`. One whose part is not
installed is still listed, and says what to install.
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
"""Each is a function in the module of its name."""

SUMMARIES = {
    "bench": "Measure how fast a bundle runs on this machine.",
    "embed": "Turn texts into vectors.",
    "export": "Export CHECKPOINT to BUNDLE, and prove the export.",
    "info": "Tell what a server has loaded.",
    "serve": "Serve bundles over gRPC until SIGTERM or SIGINT.",
    "train": "Train a model.",
    "translate": "Translate texts.",
    "verify": "Replay a bundle's golden answers on this machine.",
}
"""What `--help` says of each, so that it need not import them: torch alone takes seconds."""


class Commands(click.Group):
    """Subcommands by name, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, whether or not what they need is installed."""
        return sorted({*OWN, *_brought()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or one that says what to install; None if there is no such name."""
        if cmd_name in OWN:
            command: click.Command = getattr(import_module(f"dragoman.service.cli.{cmd_name}"), cmd_name)
            return command
        entry = _brought().get(cmd_name)
        return None if entry is None else _load(entry)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of `--help`."""
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
        """Run, and leave with a status; an error is one line on stderr."""
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


def _brought() -> dict[str, EntryPoint]:
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
    """Stands for a command whose part is not installed."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(
            name, help=SUMMARIES.get(name), context_settings={"ignore_unknown_options": True}, add_help_option=False
        )
        self.params.append(click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED))
        self._module = module

    def invoke(self, ctx: click.Context) -> Any:
        raise click.ClickException(
            f"`dragoman {self.name}` needs {self._module}, which is not installed: pip install 'dragoman[{self.name}]'"
        )


def _one_line(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message.removesuffix('.')}. See {error.ctx.command_path} --help."
    return message
