"""The server around its models: ports, health, reflection and metrics. Signals and bundles are the caller's.

While a model does not answer, the server reports it and refuses its calls. A new version replaces a model at once:
running calls end with the version that began them, and after the last of them that version's memory is returned.

Stopping has an order: health becomes NOT_SERVING, new calls are refused, running calls continue within the grace, and
the rest is cancelled.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from dragoman.bundle.manifest import Manifest
from dragoman.client.values import ModelInfo
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.loading.assembly import Assembler
from dragoman.service.loading.loader import LoadedModel
from dragoman.service.loading.memory_shares import Claim, shares
from dragoman.service.loading.model_checks import check_models
from dragoman.service.loading.runtime_check import as_configured
from dragoman.service.loading.trial_calls import ENGINE_STOP_SECONDS, try_out
from dragoman.service.loading.watchdog import watch
from dragoman.service.rpc.grpc_server import GrpcServer
from dragoman.service.rpc.ports import cannot_listen
from dragoman.service.settings import ServerSettings
from dragoman.service.system.in_thread import run_in_thread, within
from dragoman.service.system.memory_limits import NvidiaDevices
from dragoman.service.system.tuning import lower_thread_priority, trim_malloc
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.metrics_http import MetricsServer
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.served_model import ServedModel

log = logging.getLogger(__name__)

SENDING_SECONDS = 0.5
"""Time for sending the last answers, once the calls themselves have ended."""

TRACES_SECONDS = 5
"""Maximum time for sending the last traces, within the rest of the grace."""

RETIRED_SECONDS = 0.1
"""Time for the threads and tasks of a retired model to end, before its memory is returned."""


class Server:
    """gRPC and HTTP around models. Make it, `open` it, `add` its models and `stop` it on one event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        *manifests: Manifest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The server is ready once a model of each of `manifests` is added; `clock` is the engines', in seconds.

        Raises StartupError if names are not unique, or if the settings name an unknown model, an unknown pivot
        language, or faulty tokens or certificates.
        """
        self._settings = settings
        self._lifecycle = Lifecycle()
        self.registry = CollectorRegistry()
        """Registry of the server's metrics."""
        self._devices = NvidiaDevices()
        self._metrics = Metrics(self.registry, self._devices.memory)
        check_models(settings, manifests)
        self._model_metrics = {
            manifest.name: ModelMetrics(self._metrics, manifest.name, manifest.target_languages)
            for manifest in manifests
        }
        self.models: dict[str, ServedModel] = {}
        """The served models by name."""
        for name, metrics in self._model_metrics.items():
            metrics.readiness(partial(self._ready, name))
        self.account = MemoryReporter()
        """The report of the process's memory."""
        self._metrics.before_scrape.append(self._record_memory)
        self._assembler = Assembler(settings, clock)
        self._grpc = GrpcServer(settings, self.models, self.account, self._metrics, self._lifecycle)
        self._metrics_server: MetricsServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        """The bound port of gRPC, once open."""
        self.metrics_port = 0
        """The bound port of HTTP, once open."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about an exposed server, for its operator."""
        return self._grpc.warnings

    async def open(self) -> None:
        """Bind both ports, and answer on them: metrics and health, but no calls yet.

        Raises StartupError if a port cannot be bound.
        """
        await self._report_health()
        metrics_host, metrics_port = self._settings.metrics_address, self._settings.metrics_port
        self.port = self._grpc.bind()
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
        await self._metrics_server.start()
        await self._grpc.start()

    async def add(self, model: LoadedModel) -> ModelInfo:
        """Serve `model`, in place of a former one of its name, and return its description.

        Raises StartupError if the memory budget is too small for it.
        """
        if self._settings.warmup_seconds:
            await try_out(model, self._assembler, self._settings)
        manifest, settings = model.manifest, self._settings
        name, metrics = manifest.name, self._model_metrics[manifest.name]
        served = self._assembler.assemble(model, metrics)
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
        served.engine.start(self._on_engine_end(served), lower_thread_priority)
        if settings.run_timeout_seconds:
            watchdog = watch(served.engine.busy_seconds, settings.run_timeout_seconds, self._hang_report(served))
            served.watching = self._spawn(watchdog)
        former = self.models.get(name)
        self.models[name] = served
        if former is not None:
            self._spawn(self._retire(former))
        if self._lifecycle.state is State.STARTING and len(self.models) == len(self._model_metrics):
            self._lifecycle.move(State.SERVING)
        await self._report_health()
        return served.info

    def replaced(self, name: str) -> None:
        """Count a version of the model `name` that replaced the one before."""
        self._model_metrics[name].replacement("replaced")

    def refused(self, name: str) -> None:
        """Count a version of the model `name` that was found unfit to be served."""
        self._model_metrics[name].replacement("refused")

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, let running ones finish within `grace_seconds`, cancel the rest, free everything.

        Meanwhile new calls are refused one by one with UNAVAILABLE, which callers retry elsewhere; gRPC itself would
        cancel them.
        """
        self._lifecycle.move(State.STOPPING)
        grace_end = time.monotonic() + grace_seconds
        await self._grpc.drain()
        finished = await within(grace_seconds, self._lifecycle.idle())
        # Streams of health and reflection never end by themselves, and are not waited for.
        await self._grpc.stop(SENDING_SECONDS if finished else 0)
        left = min(TRACES_SECONDS, max(0.0, grace_end - time.monotonic()))
        await within(left, run_in_thread(self._grpc.traces.close))
        engines = [model.engine for model in self.models.values()]
        await asyncio.gather(*(within(ENGINE_STOP_SECONDS, run_in_thread(engine.stop)) for engine in engines))
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        for task in self._tasks:
            task.cancel()

    def _share_memory(self, models: Mapping[str, ServedModel]) -> None:
        """Divide the memory budget among `models`, once all are present. Raises StartupError if it is too small."""
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

    def _record_memory(self) -> None:
        """Set the gauges of memory; runs before each scrape, on its thread."""
        models = [*self.models.values()]
        report = self.account.look(models)
        self._metrics.held(report.process)
        for model, held in zip(models, report.models, strict=True):
            self._model_metrics[model.info.name].held(held)

    def _ready(self, name: str) -> bool:
        """Whether the model `name` answers calls now; any thread may call it."""
        model = self.models.get(name)
        return self._lifecycle.ready and model is not None and model.lifecycle.ready

    async def _report_health(self) -> None:
        await self._grpc.report_health(self._model_metrics, self._ready)

    def _hang_report(self, model: ServedModel) -> Callable[[bool], Coroutine[Any, Any, None]]:
        """The watchdog's report on the engine of `model`."""

        async def report(hangs: bool) -> None:
            if hangs:
                # At every report: a call that was being read may have reached the engine since the last one.
                model.translator.fail_all(State.HANGING.value)
            before, after = (State.SERVING, State.HANGING) if hangs else (State.HANGING, State.SERVING)
            if model.lifecycle.state is before:
                log.error("model %s %s", model.info.name, "does not answer" if hangs else "answers again")
                model.lifecycle.move(after)
                await self._report_health()

        return report

    async def _retire(self, model: ServedModel) -> None:
        """Let the calls of `model` end, and return its memory."""
        model.lifecycle.move(State.STOPPING)
        await model.lifecycle.idle()
        await run_in_thread(model.engine.stop)
        if model.watching is not None:
            model.watching.cancel()
            await asyncio.wait({model.watching})
        name, version = model.info.name, model.info.version
        del model
        # Frames of what has just ended hold the model for a moment longer.
        await asyncio.sleep(RETIRED_SECONDS)
        await run_in_thread(_give_back)
        log.info("model %s: version %s has ended, and its memory is returned", name, version)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background, until it ends or the server has stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_engine_end(self, model: ServedModel) -> Callable[[], None]:
        """A callback for the engine's threads: a model whose engine has ended is broken, unless it was stopped."""
        loop = asyncio.get_running_loop()

        def note() -> None:
            if model.lifecycle.state is not State.STOPPING:
                model.lifecycle.move(State.BROKEN)
                self._spawn(self._report_health())

        def ended() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(note)

        return ended


def _give_back() -> None:
    gc.collect()
    trim_malloc()
