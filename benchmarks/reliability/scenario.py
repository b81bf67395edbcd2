"""Parts that the reliability commands share: options, texts, the isolated server and the exit status."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from benchmarks.server_process import ServerProcess, pinned, server_process
from benchmarks.speed.sentences import DATA
from dragoman.model.training.corpus import read_pairs

ONE_THREAD = ("--threads-per-lane", "1")
"""Server options for a single computing thread."""

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

bundle_argument = click.argument("bundle", type=FOLDER)
data_option = click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=DATA,
    show_default=True,
    help="Sentence pairs; the source side is sent.",
)


def sentences_of(data: Path) -> list[str]:
    """Source sentences of a corpus, in its order."""
    return [pair.source for pair in read_pairs(data)]


def texts_of(data: Path, sentences: int) -> list[str]:
    """Consecutive texts of `sentences` sentences each; the rest of the corpus is left out."""
    found = sentences_of(data)
    return [" ".join(found[start : start + sentences]) for start in range(0, len(found) - sentences, sentences)]


@contextmanager
def isolated_server(bundle: Path) -> Iterator[ServerProcess]:
    """Single-threaded server on one processor, with the calling thread (the load generator) on another."""
    server_cpu, generator_cpu = sorted(os.sched_getaffinity(0))[:2]
    with server_process(bundle, *ONE_THREAD, cpus={server_cpu}) as server, pinned({generator_cpu}):
        yield server


def finish(faults: Sequence[str]) -> None:
    """Exit with status 1 and one line if there are faults."""
    if faults:
        raise click.ClickException("; ".join(faults))
