"""Options shared by the comparison commands, and the output of their results."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from benchmarks.results_file import FOLDER, PEERS, conditions, save
from benchmarks.timing import MIN_ROUNDS

DISTRIBUTIONS = ("onnxruntime", "ctranslate2", "torch", "transformers", "optimum-onnx")
"""Packages whose versions are recorded."""

Command = Callable[..., None]


def comparison_options(command: Command) -> Command:
    """--peer, --threads, --rounds, --work and --output."""
    peers = click.option("--peer", "peers", type=click.Choice(list(PEERS)), multiple=True, default=list(PEERS))
    threads = click.option("--threads", type=click.IntRange(1), multiple=True, default=(1, 2), show_default=True)
    return peers(threads(output_options(command)))


def output_options(command: Command) -> Command:
    """--rounds, --work and --output."""
    rounds = click.option(
        "--rounds",
        type=click.IntRange(1),
        default=MIN_ROUNDS,
        show_default=True,
        help=f"Fewer than {MIN_ROUNDS} make a trial, written to OUTPUT/trial.",
    )
    work = click.option("--work", type=click.Path(path_type=Path), default=Path("build/bench"), show_default=True)
    output = click.option("--output", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
    return rounds(work(output(command)))


def finish(output: Path, section: str, figures: object, command: str, rounds: int) -> None:
    """Write the section and print the whole table; a trial goes into its own folder."""
    measured_on = conditions(command, [name for name in DISTRIBUTIONS if installed(name)], rounds)
    folder = output if rounds >= MIN_ROUNDS else output / "trial"
    click.echo(save(folder, section, figures, measured_on))


def installed(name: str) -> bool:
    """Whether a distribution of that name is installed."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
