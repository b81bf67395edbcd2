"""Cost of metrics.

    python -m benchmarks.speed.metrics_cost BUNDLE

The engine decodes the same sentences with the counting observer and with a no-op observer, in turns. On a busy machine
the difference is lost in the noise. The processor time spent counting is therefore measured as well, less the cost of
the clock, as a share of the process's total. Exits with status 1 if the share exceeds 1 %.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

import click
from prometheus_client import CollectorRegistry

from benchmarks.speed.sentences import DATA
from benchmarks.timing import MIN_ROUNDS, Speed, speed, take_turns
from dragoman.bundle.manifest import TOKENIZER_FOLDER, open_bundle
from dragoman.bundle.tokenizers import open_tokenizer
from dragoman.model.training.corpus import read_pairs
from dragoman.service.engine.observer import Cause, Observer, Run
from dragoman.service.engine.offline import Offline, Silent
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.sequence import Sequence as EngineSequence
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import ModelMetrics

MAX_SHARE = 0.01
"""Share of the processor time spent counting."""

P = ParamSpec("P")


@dataclass(frozen=True)
class Cost:
    """Cost of counting."""

    share: float
    """Median share of the processor time."""
    counting: Speed
    """Throughput in tokens, with metrics."""
    silent: Speed
    """Throughput in tokens, without metrics."""


class Timed:
    """Observer that measures the processor time of an inner observer."""

    def __init__(self, inner: Observer) -> None:
        self.seconds = 0.0
        self.encoded = self._timed(inner.encoded)
        self.stepped = self._timed(inner.stepped)
        self.failed: Callable[[Run, Cause], None] = self._timed(inner.failed)
        self.wasted = self._timed(inner.wasted)
        self.finished: Callable[[EngineSequence], None] = self._timed(inner.finished)

    def _timed(self, call: Callable[P, None]) -> Callable[P, None]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> None:
            started = time.thread_time()
            call(*args, **kwargs)
            self.seconds += time.thread_time() - started

        return timed


def measure(bundle_folder: Path, texts: Sequence[str], rows: int, rounds: int) -> Cost:
    """Decode `texts` with and without metrics, in turns, on one thread."""
    bundle = open_bundle(bundle_folder)
    tokenizer = open_tokenizer(bundle.path(TOKENIZER_FOLDER))
    sources = [tokenizer.encode(text) for text in texts]
    runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=rows)
    counting = ModelMetrics(Metrics(CollectorRegistry()), bundle.manifest.name, bundle.manifest.target_languages)

    def decode(observer: Observer) -> int:
        with Offline([runner], bundle.manifest.decoding, rows, observer=observer) as engine:
            return sum(len(sequence.tokens) for sequence in engine.run(sources))

    def share(observer: Observer) -> float:
        timed, before = Timed(observer), time.process_time()
        decode(timed)
        return timed.seconds / (time.process_time() - before)

    tokens = decode(Silent())
    seconds = take_turns({"counting": lambda: decode(counting), "silent": lambda: decode(Silent())}, rounds)
    shares = [share(counting) - share(Silent()) for _ in range(rounds)]
    return Cost(statistics.median(shares), speed(seconds["counting"], tokens), speed(seconds["silent"], tokens))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--texts", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=MIN_ROUNDS, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, texts: int, rows: int, rounds: int, data: Path) -> None:
    """Measure the cost of metrics in an engine of BUNDLE. About a minute with the shipped model in int8."""
    sentences = [pair.source for pair in read_pairs(data)][:texts]
    cost = measure(bundle, sentences, rows, rounds)
    click.echo(
        f"counting takes {cost.share:.2%} of the processor time; {cost.counting.per_second:.0f} tokens/s with metrics "
        f"(spread {cost.counting.spread:.0%}), {cost.silent.per_second:.0f} without ({cost.silent.spread:.0%})"
    )
    if cost.share > MAX_SHARE:
        raise click.ClickException(f"counting takes more than {MAX_SHARE:.0%} of the processor time")


if __name__ == "__main__":
    main()
