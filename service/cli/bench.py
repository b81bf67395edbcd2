"""`dragoman bench`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from tqdm import tqdm

from dragoman.bundle.cpus import allowed_cpus
from dragoman.service.cli.tables import table

if TYPE_CHECKING:
    from dragoman.service.loading.measure import Throughput

HEAD = ("lanes", "threads each", "texts in each", "tokens/s", "sentences/s")


@click.command(short_help="Measure the throughput of a bundle on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--cpus",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Number of processors to use; 0: all that are available to the process.",
)
@click.option(
    "--tune", is_flag=True, help="Measure every division of the processors into lanes, and print the best options."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Approximate time to measure each line of the table.",
)
def bench(bundle: Path, cpus: int, tune: bool, seconds: float) -> None:
    """Measure the throughput of BUNDLE on this machine, in tokens and sentences per second.

    Each lane holds 1, 8 and 32 texts at once, in turn. The engine runs the bundle's own golden texts, without gRPC.
    The results are valid only if the machine is otherwise idle. Requires an ONNX Runtime, but not torch.
    """
    from dragoman.service.errors import StartupError
    from dragoman.service.loading.loader import check_runtime, read_bundle
    from dragoman.service.loading.measure import BATCHES, Layout, fastest, layouts, measure
    from dragoman.service.settings import ServerSettings

    # The defaults alone: a measurement must not depend on the variables of a server.
    settings = ServerSettings.model_construct()
    tried = layouts(cpus or allowed_cpus()) if tune else [Layout(1, cpus or allowed_cpus())]
    found: list[Throughput] = []
    try:
        check_runtime()
        opened = read_bundle(bundle)
        with tqdm(total=len(tried) * len(BATCHES), disable=None) as bar:
            for layout in tried:
                for throughput in measure(opened, settings, layout, BATCHES, seconds):
                    found.append(throughput)
                    bar.update()
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    click.echo(table([HEAD, *map(_row, found)], align=">"))
    if tune:
        flags = fastest(found).layout.flags
        click.echo(f"Most tokens a second, with {max(BATCHES)} texts in each lane: dragoman serve {bundle} {flags}")


def _row(run: "Throughput") -> tuple[str, ...]:
    return (
        str(run.layout.lanes),
        str(run.layout.threads),
        str(run.batch),
        f"{run.tokens_per_second:.0f}",
        f"{run.sentences_per_second:.1f}",
    )
