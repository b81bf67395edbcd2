"""Ports, health, reflection and metrics around the models that are served, without signals or bundles.

A model that does not answer makes the server say so, and refuse its calls, until it answers again. Another version of a
model takes its place at once: calls that were begun end with the version that began them, and when the last of them has
ended, that version's memory is given back.

It stops in order: health says NOT_SERVING, new calls are refused, running calls go on for as long as the grace allows,
and the rest is cancelled.
"""

import asyncio
import gc
import logging
import math
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from dragoman.bundle.manifest import Manifest
from dragoman.client.values import ModelInfo
from dragoman.service.banner import at
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.fair_scheduler import FairScheduler
from dragoman.service.errors import StartupError, UnknownLanguageError
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.loading.loader import LoadedModel, as_configured
from dragoman.service.loading.memory_shares import Claim, shares
from dragoman.service.loading.trial_calls import rehearse
from dragoman.service.loading.watchdog import watch
from dragoman.service.rpc.auth import Authenticator, CallerLimits
from dragoman.service.rpc.interceptor import CallInterceptor
from dragoman.service.rpc.ports import cannot_listen, check_free
from dragoman.service.rpc.servicer import TranslationService
from dragoman.service.rpc.tokens import token_source
from dragoman.service.rpc.transport import exposure, port_binder, server_limits, transport_options
from dragoman.service.settings import ServerSettings
from dragoman.service.system.in_thread import run_in_thread
from dragoman.service.system.memory_limits import NvidiaDevices
from dragoman.service.system.process import give_back_memory, give_way
from dragoman.service.telemetry.call_log import CallLog
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.telemetry.metrics import Metrics, ModelMetrics
from dragoman.service.telemetry.metrics_http import MetricsServer
from dragoman.service.telemetry.traces import open_traces
from dragoman.service.translation.languages import resolve_language
from dragoman.service.translation.served_model import ServedModel
from dragoman.service.translation.translator import CallSizeLimits, Translator
from dragoman.v1 import translation_pb2_grpc
from dragoman.v1.names import METHODS, SERVICE

log = logging.getLogger(__name__)

SENDING_SECONDS = 0.5
"""How long the last answers may take on their way out, once the calls themselves are through."""

TRACES_SECONDS = 5
"""How long the last traces may take on their way out, within what is left of the grace."""

ENGINE_STOP_SECONDS = 1
"""How long the engine's current step is waited for."""

ENDING_SECONDS = 0.1
"""How long the threads and tasks of a model that is no longer served are given to end."""

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Server:
    """gRPC and HTTP around some models. Made, opened, given its models and stopped on one event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        *manifests: Manifest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """It is ready when each of `manifests`, no two of one name, is there; `clock` is the engines', in seconds.

        Raises StartupError where there is no telling them apart, and where the settings' tokens or certificates are at
        fault, or the pivot is a language of no model.
        """
        self._settings = settings
        self._clock = clock
        self._lifecycle = Lifecycle()
        self.registry = CollectorRegistry()
        """Where the metrics are."""
        self._devices = NvidiaDevices()
        self._metrics = Metrics(self.registry, self._devices.memory)
        _check_names(settings, manifests)
        if settings.pivot:
            _check_pivot(settings.pivot, manifests)
        self._guard = Authenticator(
            token_source(settings.tokens_file, os.environ),
            CallerLimits(settings.token_calls_per_second, settings.token_calls),
        )
        self._bind = port_binder(settings)
        self._model_metrics = {
            manifest.name: ModelMetrics(self._metrics, manifest.name, manifest.target_languages)
            for manifest in manifests
        }
        self.models: dict[str, ServedModel] = {}
        """What is served now, by name."""
        for name, metrics in self._model_metrics.items():
            metrics.readiness(partial(self._ready, name))
        self.account = MemoryReporter()
        """Where memory goes."""
        self._metrics.before_scrape.append(self._tell_memory)
        self._fair_scheduler = FairScheduler(settings.lanes, clock, settings.run_timeout_seconds or math.inf)
        self._service = TranslationService(self.models, server_limits(settings), self.account, settings.pivot)
        self._health = health.aio.HealthServicer()
        self._traces = open_traces(settings)
        self._grpc = self._make_grpc()
        self._metrics_server: MetricsServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        """The port that gRPC really listens on, once open."""
        self.metrics_port = 0
        """The port that HTTP really listens on, once open."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever starts the server should know of who can reach it."""
        return exposure(self._settings, self._guard.closed)

    async def open(self) -> None:
        """Bind both ports and answer on them: metrics and health, but no calls yet.

        Raises StartupError if a port cannot be had.
        """
        await self._tell_health()
        host, port = self._settings.host, self._settings.port
        metrics_host, metrics_port = self._settings.metrics_address, self._settings.metrics_port
        check_free(host, port)
        try:
            self.port = self._bind(self._grpc, at(host, port))
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {host}, port {port}") from error
        try:
            self._metrics_server = MetricsServer(
                metrics_host,
                metrics_port,
                self.registry,
                alive=lambda: all(model.lifecycle.alive for model in [*self.models.values()]),
                ready=lambda: all(map(self._ready, self._model_metrics)),
            )
        except OSError as error:
            raise cannot_listen(metrics_host, metrics_port, error) from error
        self.metrics_port = self._metrics_server.port
        self._metrics_server.start()
        await self._grpc.start()

    async def add(self, model: LoadedModel) -> ModelInfo:
        """Serve `model` from now on, in place of the one of its name if there is one, and say what it is.

        Raises StartupError where the memory budget is too small for it.
        """
        if self._settings.warmup_seconds:
            await self._rehearse(model)
        manifest, settings = model.manifest, self._settings
        name, metrics = manifest.name, self._model_metrics[manifest.name]
        served = self._made(model, metrics)
        self._share_memory({**self.models, name: served})
        metrics.watch(served.engine)
        metrics.loaded(
            manifest.version,
            manifest.family,
            manifest.precision,
            model.provider,
            as_configured(settings.provider, model.provider, bool(self._devices.memory())),
            model.load_seconds,
            model.warmup_seconds,
            manifest.target_languages,
        )
        served.engine.start(self._when_it_ends(served), give_way)
        if settings.run_timeout_seconds:
            looking = watch(served.engine.busy_seconds, settings.run_timeout_seconds, self._report_on(served))
            served.watching = self._keep(looking)
        former = self.models.get(name)
        self.models[name] = served
        if former is not None:
            self._keep(self._retire(former))
        if self._lifecycle.state is State.STARTING and len(self.models) == len(self._model_metrics):
            self._lifecycle.move(State.SERVING)
        await self._tell_health()
        return served.info

    def replaced(self, name: str) -> None:
        """Another version of the model `name` has taken its place."""
        self._model_metrics[name].replacement("replaced")

    def refused(self, name: str) -> None:
        """A version of the model `name` was found that is not fit to take its place."""
        self._model_metrics[name].replacement("refused")

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, let those that run finish within `grace_seconds`, cancel the rest, free everything.

        Until then new calls are refused one by one: gRPC itself would cancel them, and callers try again somewhere
        else only what was UNAVAILABLE.
        """
        self._lifecycle.move(State.STOPPING)
        last = time.monotonic() + grace_seconds
        await self._health.enter_graceful_shutdown()
        finished = await _within(grace_seconds, self._lifecycle.idle())
        # Who watches health or has reflection open never hangs up, and is not waited for.
        await self._grpc.stop(SENDING_SECONDS if finished else 0)
        left = min(TRACES_SECONDS, max(0.0, last - time.monotonic()))
        await _within(left, run_in_thread(self._traces.close))
        engines = [model.engine for model in self.models.values()]
        await asyncio.gather(*(_within(ENGINE_STOP_SECONDS, run_in_thread(engine.stop)) for engine in engines))
        if self._metrics_server is not None:
            await run_in_thread(self._metrics_server.stop)
        for task in self._tasks:
            task.cancel()

    def _made(self, model: LoadedModel, metrics: ModelMetrics) -> ServedModel:
        """`model` with an engine, not yet started, that tells `metrics`."""
        manifest, settings, rules = model.manifest, self._settings, model.manifest.decoding
        share = self._fair_scheduler.share(settings.weights.get(manifest.name, 1.0))
        engine = Engine(model.runners, settings.limits, rules.end_ids, metrics, self._clock, rules.forced_end_id, share)
        limits = CallSizeLimits(settings.max_texts, settings.max_answer_bytes)
        translator = Translator(manifest, model.tokenizer, engine, limits, metrics)
        info = _model_info(manifest, model.provider, settings.compute_threads)
        return ServedModel(info, translator, engine, model.runtime_version, model.weights_file, model.held_bytes)

    async def _rehearse(self, model: LoadedModel) -> None:
        manifest = model.manifest
        unread = ModelMetrics(Metrics(CollectorRegistry()), manifest.name, manifest.target_languages)
        trial = self._made(model, unread)
        trial.engine.start()
        try:
            await rehearse(trial, server_limits(self._settings), self._settings.warmup_seconds)
        except asyncio.CancelledError:
            # A model that hangs does not keep the server from ending.
            await _within(ENGINE_STOP_SECONDS, run_in_thread(trial.engine.stop))
            raise
        await run_in_thread(trial.engine.stop)
        # What loading left would else be gone through in the middle of one of the first calls.
        gc.collect()

    def _make_grpc(self) -> grpc.aio.Server:
        settings = self._settings
        calls = CallLog(settings.log_calls_per_second, settings.log_texts)
        told = (calls.note, self._traces.note)
        around = CallInterceptor(
            SERVICE, METHODS, self._metrics, self._lifecycle, self._guard, settings.max_call_seconds, told
        )
        server = grpc.aio.server(interceptors=[around], options=transport_options(settings))
        translation_pb2_grpc.add_TranslationServiceServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    def _share_memory(self, models: Mapping[str, ServedModel]) -> None:
        """Bound what each of `models` takes, once all are there. Raises StartupError where the budget is too small."""
        budget = self._settings.memory_budget_bytes
        if not budget or len(models) < len(self._model_metrics):
            return
        base = self.account.look([*models.values()]).process.resident
        claims = [
            Claim(name, self._settings.weights.get(name, 1.0), model.fixed_bytes, model.least_bytes)
            for name, model in models.items()
        ]
        for name, limit in shares(budget, base, claims).items():
            models[name].engine.bound_memory(limit)

    def _tell_memory(self) -> None:
        """Before each scrape, on its thread."""
        models = [*self.models.values()]
        look = self.account.look(models)
        self._metrics.held(look.process)
        for model, held in zip(models, look.models, strict=True):
            self._model_metrics[model.info.name].held(held)

    def _ready(self, name: str) -> bool:
        """Whether the model `name` answers calls now; any thread may call it."""
        model = self.models.get(name)
        return self._lifecycle.ready and model is not None and model.lifecycle.ready

    async def _tell_health(self) -> None:
        """Each model has a name of its own in health; the server is well when all of them are."""
        for name in self._model_metrics:
            await self._health.set(f"{SERVICE}/{name}", SERVING if self._ready(name) else NOT_SERVING)
        for whole in ("", SERVICE):
            await self._health.set(whole, SERVING if all(map(self._ready, self._model_metrics)) else NOT_SERVING)

    def _report_on(self, model: ServedModel) -> Callable[[bool], Coroutine[Any, Any, None]]:
        """What to do at each look at the engine of `model`, which hangs or does not."""

        async def report(hangs: bool) -> None:
            if hangs:
                # Not once: a call that was being read may have come to the engine since the last look.
                model.translator.fail_all(State.HANGING.value)
            before, after = (State.SERVING, State.HANGING) if hangs else (State.HANGING, State.SERVING)
            if model.lifecycle.state is before:
                log.error("the model %s %s", model.info.name, "does not answer" if hangs else "answers again")
                model.lifecycle.move(after)
                await self._tell_health()

        return report

    async def _retire(self, model: ServedModel) -> None:
        """Let the calls end that `model` has, and give back its memory."""
        model.lifecycle.move(State.STOPPING)
        await model.lifecycle.idle()
        await run_in_thread(model.engine.stop)
        if model.watching is not None:
            model.watching.cancel()
            await asyncio.wait({model.watching})
        name, version = model.info.name, model.info.version
        del model
        # What has just ended is then no longer held by its own last line.
        await asyncio.sleep(ENDING_SECONDS)
        await run_in_thread(_give_back)
        log.info("version %s of %s is gone", version, name)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside everything else, until it ends or the server has stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _when_it_ends(self, model: ServedModel) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def note() -> None:
            if model.lifecycle.state is not State.STOPPING:
                model.lifecycle.move(State.BROKEN)
                self._keep(self._tell_health())

        def ended() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(note)

        return ended


def _give_back() -> None:
    gc.collect()
    give_back_memory()


def _check_names(settings: ServerSettings, manifests: Sequence[Manifest]) -> None:
    names = [manifest.name for manifest in manifests]
    for name in names:
        if names.count(name) > 1:
            raise StartupError(f"{names.count(name)} bundles are called {name}; a server tells models by their names")
    unknown = sorted(settings.weights.keys() - set(names))
    if unknown:
        raise StartupError(f"model_weights names {unknown[0]!r}, which is not served; there is {', '.join(names)}")


def _check_pivot(pivot: str, manifests: Sequence[Manifest]) -> None:
    known = sorted({each for what in manifests for each in (*what.source_languages, *what.target_languages)})
    try:
        resolve_language("pivot", pivot, known)
    except UnknownLanguageError as error:
        raise StartupError(f"pivot is {pivot!r}, a language of no model; there are {', '.join(known)}") from error


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` was done within `seconds`; it is given up if not."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    return bool(done)


def _model_info(manifest: Manifest, provider: str, threads: int) -> ModelInfo:
    return ModelInfo(
        name=manifest.name,
        version=manifest.version,
        family=manifest.family,
        source_languages=manifest.source_languages,
        target_languages=manifest.target_languages,
        precision=manifest.precision,
        provider=provider,
        max_source_tokens=manifest.decoding.max_source_tokens,
        max_output_tokens=manifest.decoding.max_output_tokens if manifest.translates else 0,
        max_source_characters=manifest.max_source_characters,
        embedding_dimension=manifest.dimensions.d_model,
        threads=threads,
    )
