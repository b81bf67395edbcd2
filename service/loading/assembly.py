"""From a loaded model to one that serves calls: its engine and its translator."""

import math
from collections.abc import Callable

from dragoman.service.engine.engine import Engine
from dragoman.service.engine.fair_scheduler import FairScheduler
from dragoman.service.loading.loader import LoadedModel
from dragoman.service.settings import ServerSettings
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.model_info import model_info
from dragoman.service.translation.served_model import ServedModel
from dragoman.service.translation.translator import CallSizeLimits, Translator


class Assembler:
    """Gives each model of one server an engine; all engines share the processors fairly."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]) -> None:
        """`clock` is the engines', in seconds."""
        self._settings = settings
        self._clock = clock
        self._fair_scheduler = FairScheduler(settings.lanes, clock, settings.run_timeout_seconds or math.inf)

    def assemble(self, model: LoadedModel, metrics: ModelMetrics) -> ServedModel:
        """`model` with an engine, not yet started, that counts into `metrics`."""
        manifest, settings, rules = model.manifest, self._settings, model.manifest.decoding
        share = self._fair_scheduler.share(settings.weights.get(manifest.name, 1.0))
        engine = Engine(model.runners, settings.limits, rules.end_ids, metrics, self._clock, rules.forced_end_id, share)
        limits = CallSizeLimits(settings.max_texts, settings.max_answer_bytes)
        translator = Translator(manifest, model.tokenizer, engine, limits, metrics)
        info = model_info(manifest, model.provider, settings.compute_threads)
        return ServedModel(info, translator, engine, model.runtime_version, model.weights_file, model.held_bytes)
