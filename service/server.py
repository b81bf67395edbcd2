"""One server process: ports, health, reflection and metrics around the model that it serves.

    serve        reads the bundle, binds the ports, verifies, loads, serves until a signal, and stops
    Server       what is bound and served, without signals or bundles

A model that does not answer makes the server say so, and refuse calls, until it answers again.

A signal at any moment stops the server in order: health says NOT_SERVING, new calls are refused, running calls go on
for as long as the grace allows, and the rest is cancelled. A second signal ends the process at once.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from dragoman.export.bundle import Bundle, Manifest
from dragoman.service.announcement import announcement, at
from dragoman.service.aside import ASIDE, run_aside
from dragoman.service.call_log import CallLog
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.lane import ENGINE
from dragoman.service.exposition import Exposition
from dragoman.service.guard import Guard, TokenLimits
from dragoman.service.interceptor import CallInterceptor
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.loading import LoadedModel, StartupError, as_configured, load_model, read_bundle, verify_model
from dragoman.service.memory import NvidiaDevices
from dragoman.service.metrics import Metrics, ModelMetrics
from dragoman.service.results import ModelInfo
from dragoman.service.servicer import METHODS, SERVICE, ServedModel, TranslationService
from dragoman.service.settings import ServerSettings
from dragoman.service.tokens import token_source
from dragoman.service.translator import CallLimits, Translator
from dragoman.service.transport import exposure, port_binder, server_limits, transport_options
from dragoman.service.watchdog import watch
from dragoman.v1 import translation_pb2_grpc

log = logging.getLogger(__name__)

SENDING_SECONDS = 0.5
"""How long the last answers may take on their way out, once the calls themselves are through."""

ENGINE_STOP_SECONDS = 1
"""How long the engine's current step is waited for."""

IMPATIENT_STATUS = 1
"""Exit status after a second signal."""

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Server:
    """gRPC and HTTP around one model. Made, opened, given its model and stopped on one event loop.

    Raises StartupError where the settings' tokens or certificates are at fault.
    """

    def __init__(
        self, settings: ServerSettings, manifest: Manifest, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is that of the engine, in seconds."""
        self._settings = settings
        self._clock = clock
        self._lifecycle = Lifecycle()
        self.registry = CollectorRegistry()
        """Where the metrics are."""
        self._devices = NvidiaDevices()
        self._metrics = Metrics(self.registry, self._devices.memory)
        self._model_metrics = ModelMetrics(self._metrics, manifest.name, manifest.target_languages)
        self._model_metrics.readiness(lambda: self._lifecycle.ready)
        self._guard = Guard(
            token_source(settings.tokens_file, os.environ),
            TokenLimits(settings.token_calls_per_second, settings.token_calls),
        )
        self._bind = port_binder(settings)
        self._service = TranslationService(server_limits(settings))
        self._health = health.aio.HealthServicer()
        self._grpc = self._make_grpc()
        self._exposition: Exposition | None = None
        self._engine: Engine | None = None
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
        await self._set_health(NOT_SERVING)
        host, port, metrics_port = self._settings.host, self._settings.port, self._settings.metrics_port
        _check_free(host, port)
        try:
            self.port = self._bind(self._grpc, at(host, port))
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {host}, port {port}") from error
        try:
            self._exposition = Exposition(
                host,
                metrics_port,
                self.registry,
                alive=lambda: self._lifecycle.alive,
                ready=lambda: self._lifecycle.ready,
            )
        except OSError as error:
            raise _cannot_listen(host, metrics_port, error) from error
        self.metrics_port = self._exposition.port
        self._exposition.start()
        await self._grpc.start()

    async def add(self, model: LoadedModel) -> ModelInfo:
        """Serve `model` from now on, and say what it is."""
        manifest, settings = model.manifest, self._settings
        rules = manifest.decoding
        engine = Engine(
            model.runners, settings.limits, rules.end_ids, self._model_metrics, self._clock, rules.forced_end_id
        )
        self._engine = engine
        self._model_metrics.watch(engine)
        self._model_metrics.loaded(
            manifest.version,
            manifest.family,
            manifest.precision,
            model.provider,
            as_configured(settings.provider, model.provider, bool(self._devices.memory())),
            model.load_seconds,
            model.warmup_seconds,
        )
        limits = CallLimits(settings.max_texts, settings.max_answer_bytes)
        translator = Translator(manifest, model.tokenizer, engine, limits, self._model_metrics)
        info = _model_info(manifest, model.provider, settings.compute_threads)
        self._service.add(ServedModel(info, translator), model.runtime_version)
        engine.start(self._when_engine_ends())
        self._lifecycle.move(State.SERVING)
        await self._set_health(SERVING)
        if settings.run_timeout_seconds:
            self._keep(watch(engine.busy_seconds, settings.run_timeout_seconds, self._report_on(translator)))
        return info

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, let those that run finish within `grace_seconds`, cancel the rest, free everything.

        Until then new calls are refused one by one: gRPC itself would cancel them, and callers try again somewhere
        else only what was UNAVAILABLE.
        """
        self._lifecycle.move(State.STOPPING)
        await self._health.enter_graceful_shutdown()
        finished = await _within(grace_seconds, self._lifecycle.idle())
        # Who watches health or has reflection open never hangs up, and is not waited for.
        await self._grpc.stop(SENDING_SECONDS if finished else 0)
        if self._engine is not None:
            await _within(ENGINE_STOP_SECONDS, run_aside(self._engine.stop))
        if self._exposition is not None:
            await run_aside(self._exposition.stop)
        for task in self._tasks:
            task.cancel()

    def _make_grpc(self) -> grpc.aio.Server:
        settings = self._settings
        calls = CallLog(settings.log_calls_per_second, settings.log_texts)
        around = CallInterceptor(SERVICE, METHODS, self._metrics, self._lifecycle, self._guard, calls)
        server = grpc.aio.server(interceptors=[around], options=transport_options(settings))
        translation_pb2_grpc.add_TranslationServiceServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)

    def _report_on(self, translator: Translator) -> Callable[[bool], Coroutine[Any, Any, None]]:
        """What to do at each look at the engine, which hangs or does not."""

        async def report(hangs: bool) -> None:
            if hangs:
                # Not once: a call that was being read may have come to the engine since the last look.
                translator.give_up(State.HANGING.value)
            before, after = (State.SERVING, State.HANGING) if hangs else (State.HANGING, State.SERVING)
            if self._lifecycle.state is before:
                log.error("the model %s", "does not answer" if hangs else "answers again")
                self._lifecycle.move(after)
                await self._set_health(NOT_SERVING if hangs else SERVING)

        return report

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside everything else, until it ends or the server has stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _when_engine_ends(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def note() -> None:
            self._lifecycle.move(State.BROKEN)
            if not self._lifecycle.ready:
                self._keep(self._set_health(NOT_SERVING))

        def ended() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(note)

        return ended


def serve(
    settings: ServerSettings,
    folder: Path,
    load: Callable[[Bundle, ServerSettings], LoadedModel] = load_model,
    verify: Callable[[Bundle, int], object] = verify_model,
) -> None:
    """Serve the bundle in `folder` until SIGTERM or SIGINT.

    Raises StartupError if that cannot be done; before a port is bound if the bundle is at fault. `load` and `verify`
    are what stands between the bundle's files and an answer. Leaves the process if work that cannot be interrupted
    is still going on.
    """
    asyncio.run(_until_signal(_life(settings, folder, load, verify)))
    if any(thread.name in (ASIDE, ENGINE) for thread in threading.enumerate()):
        # The interpreter would wait for them, or end under them while they compute.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _life(
    settings: ServerSettings,
    folder: Path,
    load: Callable[[Bundle, ServerSettings], LoadedModel],
    verify: Callable[[Bundle, int], object],
) -> None:
    """All that a server does; cancelled, it stops in order."""
    bundle = await run_aside(lambda: read_bundle(folder))
    server = Server(settings, bundle.manifest)
    try:
        await server.open()
        for warning in server.warnings:
            _say(warning)
        if settings.verify:
            _say(f"Verifying {bundle.manifest.name} on this machine ...")
            await run_aside(lambda: verify(bundle, settings.compute_threads))
        _say(f"Loading {bundle.manifest.name} ...")
        model = await run_aside(lambda: load(bundle, settings))
        info = await server.add(model)
        _say(announcement(info, settings.host, server.port, server.metrics_port, bool(settings.tls_certificate)))
        await asyncio.Event().wait()
    finally:
        await server.stop(settings.grace_seconds)


async def _until_signal(life: Coroutine[Any, Any, None]) -> None:
    """Run `life`; the first signal cancels it, a second one ends the process where it stands."""
    task = asyncio.create_task(life)

    def on_signal() -> None:
        if task.cancelling():
            os._exit(IMPATIENT_STATUS)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    with suppress(asyncio.CancelledError):
        await task


def _say(lines: str) -> None:
    print(lines, flush=True)


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` was done within `seconds`; it is given up if not."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    return bool(done)


def _check_free(host: str, port: int) -> None:
    """Raise StartupError if `port` cannot be listened on; gRPC itself would say why on several lines of its log."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        return StartupError(f"port {port} on {host} is in use")
    return StartupError(f"cannot listen on {host}, port {port}: {error.strerror}")


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
