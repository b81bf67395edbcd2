"""Python overhead: the share of an engine iteration that is spent outside the graph.

    python -m benchmarks.speed.overhead

A batch of the OPUS shape runs through the whole engine. An iteration lasts from one call of the decoder's graph to the
next, so it includes scheduling, the step and the update. The overhead is the share of an iteration outside the graph's
call. Exits with status 1 if it exceeds 10 % at 32 rows of the OPUS shape.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import click

from benchmarks.bundle_engine import open_engine
from benchmarks.measured_models import MODELS, Measured, write_bundle
from benchmarks.speed.contenders import PRECISIONS, ROWS
from benchmarks.speed.steps import random_sources
from dragoman.bundle.precision import Precision
from dragoman.bundle.runtime import onnxruntime

MAX_OUTSIDE = 0.1
"""Share of an iteration at 32 rows of the OPUS shape."""


@dataclass(frozen=True)
class Call:
    """Start and end of one call of the decoder's graph, in seconds."""

    started: float
    ended: float


@dataclass(frozen=True)
class Share:
    """Medians over the iterations."""

    iteration_seconds: float
    graph_seconds: float
    outside: float
    """Share of an iteration that is spent outside the graph."""


@contextmanager
def record_calls() -> Iterator[list[Call]]:
    """Record every graph call through I/O bindings, as the engine's steps are, until exit."""
    calls: list[Call] = []
    run: Callable[..., None] = onnxruntime.InferenceSession.run_with_iobinding

    def timed(session: onnxruntime.InferenceSession, binding: object, options: object = None) -> None:
        started = time.perf_counter()
        run(session, binding, options)
        calls.append(Call(started, time.perf_counter()))

    with patch.object(onnxruntime.InferenceSession, "run_with_iobinding", timed):
        yield calls


def share_of(calls: Sequence[Call]) -> Share:
    """Overhead in the calls of one uninterrupted batch. Raises ValueError without a complete iteration."""
    if len(calls) < 2:
        raise ValueError(f"calls must hold at least 2, are {len(calls)}: the engine did not step through bindings")
    iterations = [following.started - call.started for call, following in pairwise(calls)]
    inside = [call.ended - call.started for call in calls[:-1]]
    outside = [1 - graph / iteration for graph, iteration in zip(inside, iterations, strict=True)]
    return Share(statistics.median(iterations), statistics.median(inside), statistics.median(outside))


def measure(measured: Measured, precision: Precision, folder: Path, threads: int, rows: int, steps: int) -> Share:
    """Export `measured` into `folder`, run one batch of `rows` rows to warm up, and measure a second."""
    bundle = write_bundle(folder, measured.model, measured.endless, precision)
    sources = random_sources(measured)[:rows]
    with open_engine(bundle, threads=threads, rows=rows) as engine:
        engine.run(sources, [steps] * rows)
        with record_calls() as calls:
            engine.run(sources, [steps] * rows)
    return share_of(calls)


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="opus-shape", show_default=True)
@click.option("--rows", type=click.IntRange(1, ROWS), default=ROWS, show_default=True)
@click.option("--steps", type=click.IntRange(2), default=96, show_default=True)
@click.option("--threads", type=click.IntRange(1), multiple=True, default=(1, 2), show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/bench/overhead"), show_default=True)
def main(model: str, rows: int, steps: int, threads: Sequence[int], work: Path) -> None:
    """Print the share of an iteration that is spent outside the graph. About 2 minutes on two quiet cores."""
    measured = MODELS[model]()
    shares = []
    for precision in PRECISIONS:
        for count in threads:
            share = measure(measured, precision, work / model / precision, count, rows, steps)
            shares.append(share)
            click.echo(
                f"{model} {precision}, {rows} rows, {count} threads: an iteration takes "
                f"{share.iteration_seconds * 1000:.2f} ms, its graph {share.graph_seconds * 1000:.2f} ms, "
                f"{share.outside:.1%} is outside the graph"
            )
    if model == "opus-shape" and rows == ROWS and max(share.outside for share in shares) > MAX_OUTSIDE:
        raise click.ClickException(f"more than {MAX_OUTSIDE:.0%} of an iteration is spent outside the graph")


if __name__ == "__main__":
    main()
