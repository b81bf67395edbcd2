"""A real translator, tokenizer and engine around FakeRunner, without a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from dragoman.bundle.manifest import Manifest
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.translator import CallSizeLimits, Translator
from tests.support.fake_runner import FakeRunner
from tests.support.harness import manifest, tokenizer

FOREVER = 10**9

LIMITS = BatchLimits(rows=4, tokens=10 * FOREVER, encode_tokens=1000, queue_sequences=8, queue_tokens=10 * FOREVER)

SIZE_LIMITS = CallSizeLimits(texts=1000, answer_bytes=2**20)


@dataclass
class Bench:
    """A translator over a running engine, with its parts at hand."""

    translator: Translator
    engine: Engine
    runner: FakeRunner
    registry: CollectorRegistry

    def finished(self, reason: str) -> float:
        return self.registry.get_sample_value("dragoman_finished_total", {"model": "fake", "reason": reason}) or 0.0


@asynccontextmanager
async def translating(
    runner: FakeRunner | None = None, what: Manifest | None = None, limits: CallSizeLimits | None = None
) -> AsyncIterator[Bench]:
    """A bench whose model `what` runs on `runner`."""
    runner, what, registry = runner or FakeRunner(), what or manifest(), CollectorRegistry()
    metrics = ModelMetrics(Metrics(registry), what.name, what.target_languages)
    engine = Engine([runner], LIMITS, what.decoding.end_ids, metrics)
    engine.start()
    try:
        translator = Translator(what, tokenizer(), engine, limits or SIZE_LIMITS, metrics)
        yield Bench(translator, engine, runner, registry)
    finally:
        runner.gate.set()
        engine.stop()
