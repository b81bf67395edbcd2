"""How fast a bundle runs on the machine at hand, and with which settings it runs fastest."""

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
"""Most texts that are decoded together, in turn."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Layout:
    """How the processors are shared out."""

    lanes: int
    """Batches that run side by side."""
    threads: int
    """That compute in each of them."""

    @property
    def flags(self) -> str:
        """What to give to `dragoman serve`."""
        return f"--lanes {self.lanes} --threads-per-lane {self.threads}"


@dataclass(frozen=True)
class Throughput:
    """What came out in one run."""

    layout: Layout
    batch: int
    tokens_per_second: float
    """Output tokens, end tokens counted."""
    sentences_per_second: float


def layouts(cpus: int) -> list[Layout]:
    """What is worth a try on so many processors: every way to use them all, and a single thread to compare with."""
    whole = [Layout(lanes, cpus // lanes) for lanes in range(1, cpus + 1) if cpus % lanes == 0]
    return whole if cpus == 1 else [Layout(1, 1), *whole]


def measure(
    bundle: Bundle, settings: ServerSettings, layout: Layout, batches: Sequence[int], seconds: float
) -> Iterator[Throughput]:
    """Run the bundle's golden texts over and over, about `seconds` for each of `batches`.

    Raises StartupError where the model cannot be loaded, has no golden texts, or does not translate.
    """
    if not bundle.manifest.translates:
        raise StartupError(f"{bundle.folder} only embeds; what is measured here is translation")
    golden = bundle.golden()
    sources = [text.source_ids for text in golden]
    if not sources:
        raise StartupError(f"{bundle.folder} holds no golden texts to run")
    # Each batch begins with a round that is not counted, and warms it up.
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
    """Run `sources` once to see how long they take, then as often as fits into `seconds`, all at once."""
    started = clock()
    engine.run(sources, prompts=prompts)
    times = max(1, math.floor(seconds / max(clock() - started, 1e-9)))
    started = clock()
    found = engine.run([*sources] * times, prompts=[*prompts] * times)
    taken = clock() - started
    tokens = sum(len(sequence.tokens) for sequence in found)
    return Throughput(layout, batch, tokens / taken, len(found) / taken)


def fastest(found: Sequence[Throughput]) -> Throughput:
    """The one that gave most tokens a second in the largest batch: what a busy server runs."""
    largest = max(each.batch for each in found)
    return max((each for each in found if each.batch == largest), key=lambda each: each.tokens_per_second)
