"""`dragoman verify`."""

from pathlib import Path
from typing import Literal

import click

from dragoman.bundle.cpus import allowed_cpus
from dragoman.service.cli.tables import two_columns


@click.command(short_help="Replay a bundle's golden answers on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    envvar="DRAGOMAN_THREADS",
    show_envvar=True,
    show_default=True,
    help="Threads that compute; 0 takes as many as the process may use processors.",
)
@click.option(
    "--provider",
    type=click.Choice(("cpu", "cuda")),
    default="cpu",
    show_default=True,
    help="Where to replay. On cuda, texts whose tokens differ in a batch are counted, and no failure.",
)
def verify(bundle: Path, threads: int, provider: Literal["cpu", "cuda"]) -> None:
    """Replay the golden answers of BUNDLE on this machine, and check that texts alone and in batches come out alike.

    Ends with a table of what holds, or with status 1 and the check that failed. Needs an ONNX Runtime, but no torch.
    """
    from dragoman.service.errors import StartupError
    from dragoman.service.loading.bundles import read_bundle
    from dragoman.service.loading.loader import verify_model

    try:
        checks = verify_model(read_bundle(bundle), threads or allowed_cpus(), provider, progress=_note)
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    click.echo(two_columns([(check.name, check.detail) for check in checks]))


def _note(line: str) -> None:
    click.echo(line, err=True)
