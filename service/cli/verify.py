"""`dragoman verify`."""

from pathlib import Path
from typing import get_args

import click

from dragoman.bundle.cpus import allowed_cpus
from dragoman.bundle.providers import Provider
from dragoman.service.cli.tables import table


@click.command(short_help="Replay a bundle's golden answers on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    envvar="DRAGOMAN_THREADS",
    show_envvar=True,
    show_default=True,
    help="Number of compute threads; 0: one per processor available to the process.",
)
@click.option(
    "--provider",
    type=click.Choice(get_args(Provider)),
    default="cpu",
    show_default=True,
    help="Device to run on. On cuda, texts whose tokens differ in a batch are counted but do not fail the check.",
)
def verify(bundle: Path, threads: int, provider: Provider) -> None:
    """Replay the golden answers of BUNDLE on this machine, and check that batching does not change them.

    Prints a table of the checks that passed. A failed check ends the command with status 1. Requires an ONNX Runtime,
    but not torch.
    """
    from dragoman.service.errors import StartupError
    from dragoman.service.loading.loader import read_bundle, verify_model

    try:
        checks = verify_model(read_bundle(bundle), threads or allowed_cpus(), provider, progress=_note)
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    click.echo(table([(check.name, check.detail) for check in checks]))


def _note(line: str) -> None:
    click.echo(line, err=True)
