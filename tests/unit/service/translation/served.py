"""Served models that differ in their languages alone."""

import dataclasses

from prometheus_client import CollectorRegistry

from dragoman.client.values import ModelInfo
from dragoman.service.engine.engine import Engine
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.served_model import ServedModel
from dragoman.service.translation.translator import Translator
from tests.support.fake_runner import FakeRunner
from tests.support.harness import encoder_manifest, manifest, tokenizer
from tests.unit.service.translation.bench import LIMITS, SIZE_LIMITS

INFO = ModelInfo("", "0123", "transformer", (), (), "float32", "CPUExecutionProvider", 1, 1, 1, 1, 2)


def served_model(name: str, sources: str, targets: str, runner: FakeRunner | None = None) -> ServedModel:
    """A model of the languages in `sources` and `targets`, separated by spaces; its engine is not started."""
    read, written = tuple(sources.split()), tuple(targets.split())
    what = manifest() if written else encoder_manifest()
    what = dataclasses.replace(what, name=name, source_languages=read, target_languages=written)
    metrics = ModelMetrics(Metrics(CollectorRegistry()), name, written)
    engine = Engine([runner or FakeRunner()], LIMITS, what.decoding.end_ids, metrics)
    translator = Translator(what, tokenizer(), engine, SIZE_LIMITS, metrics)
    info = dataclasses.replace(INFO, name=name, source_languages=read, target_languages=written)
    return ServedModel(info, translator, engine, "1.0")
