"""What Python costs: the part of the engine's turn that is spent outside the graph.

    python -m benchmarks.speed.overhead

A batch of the OPUS shape runs through the whole engine. A turn lasts from one call of the decoder's graph to the next:
scheduling, the step and the update are all in it. The part outside is what the graph's own call leaves of the turn.
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
"""Of a turn at 32 rows of the OPUS shape."""


@dataclass(frozen=True)
class Call:
    """One call of the decoder's graph, by the clock."""

    started: float
    ended: float


@dataclass(frozen=True)
class Share:
    """Medians over the turns."""

    turn_seconds: float
    graph_seconds: float
    outside: float
    """The part of a turn that is spent outside the graph."""


@contextmanager
def watched() -> Iterator[list[Call]]:
    """Inside, every call of a graph through bindings, as the engine's steps are, is noted."""
    calls: list[Call] = []
    run: Callable[..., None] = onnxruntime.InferenceSession.run_with_iobinding

    def timed(session: onnxruntime.InferenceSession, binding: object, options: object = None) -> None:
        started = time.perf_counter()
        run(session, binding, options)
        calls.append(Call(started, time.perf_counter()))

    with patch.object(onnxruntime.InferenceSession, "run_with_iobinding", timed):
        yield calls


def share_of(calls: Sequence[Call]) -> Share:
    """What the calls of one uninterrupted batch say. Raises ValueError where there is no whole turn."""
    if len(calls) < 2:
        raise ValueError(f"calls must hold at least 2, are {len(calls)}: the engine did not step through bindings")
    turns = [following.started - call.started for call, following in pairwise(calls)]
    inside = [call.ended - call.started for call in calls[:-1]]
    outside = [1 - graph / turn for graph, turn in zip(inside, turns, strict=True)]
    return Share(statistics.median(turns), statistics.median(inside), statistics.median(outside))


def measure(measured: Measured, precision: Precision, folder: Path, threads: int, rows: int, steps: int) -> Share:
    """Export `measured` into `folder`, run one batch of `rows` rows to warm up, and one that counts."""
    bundle = write_bundle(folder, measured.model, measured.endless, precision)
    sources = random_sources(measured)[:rows]
    with open_engine(bundle, threads=threads, rows=rows) as engine:
        engine.run(sources, [steps] * rows)
        with watched() as calls:
            engine.run(sources, [steps] * rows)
    return share_of(calls)


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="opus-shape", show_default=True)
@click.option("--rows", type=click.IntRange(1, ROWS), default=ROWS, show_default=True)
@click.option("--steps", type=click.IntRange(2), default=96, show_default=True)
@click.option("--threads", type=click.IntRange(1), multiple=True, default=(1, 2), show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/bench/overhead"), show_default=True)
def main(model: str, rows: int, steps: int, threads: Sequence[int], work: Path) -> None:
    """Print how much of a turn is spent outside the graph. About 2 minutes on two quiet cores."""
    measured = MODELS[model]()
    shares = []
    for precision in PRECISIONS:
        for count in threads:
            share = measure(measured, precision, work / model / precision, count, rows, steps)
            shares.append(share)
            click.echo(
                f"{model} {precision}, {rows} rows, {count} threads: a turn takes {share.turn_seconds * 1000:.2f} ms, "
                f"its graph {share.graph_seconds * 1000:.2f} ms, {share.outside:.1%} is outside"
            )
    if model == "opus-shape" and rows == ROWS and max(share.outside for share in shares) > MAX_OUTSIDE:
        raise click.ClickException(f"more than {MAX_OUTSIDE:.0%} of a turn is spent outside the graph")


if __name__ == "__main__":
    main()
