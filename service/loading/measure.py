"""Throughput of a bundle on this machine, per layout of lanes and threads."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dragoman.bundle.manifest import Bundle
from dragoman.service.engine.offline import Offline
from dragoman.service.errors import StartupError
from dragoman.service.loading.loader import load_model
from dragoman.service.settings import ServerSettings

BATCHES = (1, 8, 32)
"""Batch sizes that are measured in turn: texts decoded together."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Layout:
    """A division of the processors into lanes."""

    lanes: int
    """Batches that run in parallel."""
    threads: int
    """Compute threads per lane."""

    @property
    def flags(self) -> str:
        """Command-line options of `dragoman serve` for this layout."""
        return f"--lanes {self.lanes} --threads-per-lane {self.threads}"


@dataclass(frozen=True)
class Throughput:
    """Result of one run."""

    layout: Layout
    batch: int
    tokens_per_second: float
    """Output tokens, including end tokens."""
    sentences_per_second: float


def layouts(cpus: int) -> list[Layout]:
    """Layouts to measure on `cpus` processors: all that use every one, and a single thread for comparison."""
    whole = [Layout(lanes, cpus // lanes) for lanes in range(1, cpus + 1) if cpus % lanes == 0]
    return whole if cpus == 1 else [Layout(1, 1), *whole]


def measure(
    bundle: Bundle, settings: ServerSettings, layout: Layout, batches: Sequence[int], seconds: float
) -> Iterator[Throughput]:
    """Run the bundle's golden texts repeatedly, for about `seconds` per batch size.

    Raises StartupError if the model cannot be loaded, has no golden texts, or does not translate.
    """
    if not bundle.manifest.translates:
        raise StartupError(f"{bundle.folder} only embeds; bench measures translation")
    golden = bundle.golden()
    sources = [text.source_ids for text in golden]
    if not sources:
        raise StartupError(f"{bundle.folder} holds no golden texts to run")
    # Each batch begins with an uncounted round, which warms it up.
    own = {"lanes": layout.lanes, "threads_per_lane": layout.threads, "max_rows": max(batches), "warmup_seconds": 0}
    loaded = load_model(bundle, settings.model_copy(update=own))
    prompts = [loaded.tokenizer.prompt(text.target_language) for text in golden]
    for batch in batches:
        with Offline(loaded.runners, bundle.manifest.decoding, batch) as engine:
            yield run_for(engine, sources, prompts, layout, batch, seconds)


def run_for(
    engine: Offline,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    layout: Layout,
    batch: int,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> Throughput:
    """Time `sources` once, then run as many copies of them as fit into `seconds`, all at once."""
    started = clock()
    engine.run(sources, prompts=prompts)
    times = max(1, math.floor(seconds / max(clock() - started, 1e-9)))
    started = clock()
    found = engine.run([*sources] * times, prompts=[*prompts] * times)
    taken = clock() - started
    tokens = sum(len(sequence.tokens) for sequence in found)
    return Throughput(layout, batch, tokens / taken, len(found) / taken)


def fastest(found: Sequence[Throughput]) -> Throughput:
    """The run with the most tokens per second at the largest batch size, which is that of a busy server."""
    largest = max(each.batch for each in found)
    return max((each for each in found if each.batch == largest), key=lambda each: each.tokens_per_second)
