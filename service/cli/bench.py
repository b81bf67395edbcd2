"""`dragoman bench`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from tqdm import tqdm

from dragoman.bundle.cpus import allowed_cpus

if TYPE_CHECKING:
    from dragoman.service.loading.measure import Throughput


@click.command(short_help="Measure how fast a bundle runs on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--cpus",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Processors to compute on; 0 takes as many as the process may use.",
)
@click.option("--tune", is_flag=True, help="Try every way to share them out over lanes, and say which to serve with.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="About how long each line of the table is measured.",
)
def bench(bundle: Path, cpus: int, tune: bool, seconds: float) -> None:
    """Measure how many tokens and sentences a second BUNDLE gives on this machine.

    A lane holds 1, 8 and 32 texts at once, in turn. The engine runs the bundle's own golden texts, without gRPC.
    Numbers hold for a machine that does nothing else meanwhile. Needs an ONNX Runtime, but no torch.
    """
    from dragoman.service.errors import StartupError
    from dragoman.service.loading.bundles import read_bundle
    from dragoman.service.loading.measure import BATCHES, Layout, fastest, layouts, measure
    from dragoman.service.loading.runtime_check import check_runtime
    from dragoman.service.settings import ServerSettings

    tried = layouts(cpus or allowed_cpus()) if tune else [Layout(1, cpus or allowed_cpus())]
    found: list[Throughput] = []
    try:
        check_runtime()
        opened = read_bundle(bundle)
        with tqdm(total=len(tried) * len(BATCHES), disable=None) as bar:
            for layout in tried:
                for throughput in measure(opened, ServerSettings(), layout, BATCHES, seconds):
                    found.append(throughput)
                    bar.update()
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    click.echo(table(found))
    if tune:
        flags = fastest(found).layout.flags
        click.echo(f"Most tokens a second, with {max(BATCHES)} texts in each lane: dragoman serve {bundle} {flags}")


def table(found: "Sequence[Throughput]") -> str:
    """One line a run, under a head."""
    head = f"{'lanes':>5}  {'threads each':>12}  {'texts in each':>13}  {'tokens/s':>8}  {'sentences/s':>11}"
    lines = [
        f"{run.layout.lanes:>5}  {run.layout.threads:>12}  {run.batch:>13}"
        f"  {run.tokens_per_second:>8.0f}  {run.sentences_per_second:>11.1f}"
        for run in found
    ]
    return "\n".join((head, *lines))
