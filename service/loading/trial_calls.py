"""Trial calls: a server's first calls to a model, made by itself before it accepts others.

Some work is slow only once: lazy imports, the interpreter's specialization, gRPC's first call, the tokenizer's first
text. The trial calls take that cost over gRPC, on a private socket and with throw-away metrics.
"""

import asyncio
import gc
import logging
import tempfile
import time
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from dragoman.client.values import ServerLimits
from dragoman.service.banner import EXAMPLE
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.loading.assembly import Assembler
from dragoman.service.loading.loader import LoadedModel
from dragoman.service.rpc.auth import Authenticator, CallerLimits
from dragoman.service.rpc.interceptor import CallInterceptor
from dragoman.service.rpc.servicer import TranslationService
from dragoman.service.rpc.transport import server_limits
from dragoman.service.settings import ServerSettings
from dragoman.service.system.in_thread import run_in_thread, within
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.served_model import ServedModel
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from dragoman.v1.names import METHODS, SERVICE

log = logging.getLogger(__name__)

CALLS = 16
"""Trial calls per method. The interpreter specializes code after some eight runs."""

OUTPUT_TOKENS = 8

ENGINE_STOP_SECONDS = 1
"""Maximum wait for an engine's current step."""

SHARED_MEMORY = "/dev/shm"
"""Folder in memory that any user may write to on Linux."""


async def try_out(model: LoadedModel, assembler: Assembler, settings: ServerSettings) -> None:
    """Make the trial calls to `model` on an engine of its own, within the settings' warm-up time."""
    manifest = model.manifest
    unscraped = ModelMetrics(Metrics(CollectorRegistry()), manifest.name, manifest.target_languages)
    trial = assembler.assemble(model, unscraped)
    trial.engine.start()
    try:
        await make_trial_calls(trial, server_limits(settings), settings.warmup_seconds)
    except asyncio.CancelledError:
        # A model that hangs must not keep the server from stopping.
        await within(ENGINE_STOP_SECONDS, run_in_thread(trial.engine.stop))
        raise
    await run_in_thread(trial.engine.stop)
    # The garbage of loading would otherwise be collected during one of the first calls.
    gc.collect()


async def make_trial_calls(model: ServedModel, limits: ServerLimits, seconds: float) -> None:
    """Make the trial calls to `model`, whose engine is running; starts none after `seconds`.

    A failure is logged, and does not keep the model from being served.
    """
    try:
        with _folder() as folder:
            await _call(model, limits, seconds, f"unix:{Path(folder) / 'trial'}")
    except grpc.aio.AioRpcError as error:
        log.warning("trial calls to %s failed: %s", model.info.name, error.details())
    except (OSError, RuntimeError) as error:
        log.warning("trial calls to %s failed: %s", model.info.name, error)


def _folder() -> "tempfile.TemporaryDirectory[str]":
    try:
        return tempfile.TemporaryDirectory()
    except FileNotFoundError:
        # All temporary folders of a container may be read-only.
        return tempfile.TemporaryDirectory(dir=SHARED_MEMORY)


async def _call(model: ServedModel, limits: ServerLimits, seconds: float, address: str) -> None:
    metrics, lifecycle = Metrics(CollectorRegistry()), Lifecycle(State.SERVING)
    around = CallInterceptor(
        SERVICE, METHODS, metrics, lifecycle, Authenticator(None, CallerLimits()), limits.call_seconds, ()
    )
    server = grpc.aio.server(interceptors=[around])
    rpc.add_TranslationServiceServicer_to_server(
        TranslationService({model.info.name: model}, limits, MemoryReporter()), server
    )
    server.add_insecure_port(address)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            await _call_on(rpc.TranslationServiceStub(channel), model, time.monotonic() + seconds)
    finally:
        await server.stop(0)


async def _call_on(stub: "rpc.TranslationServiceAsyncStub", model: ServedModel, end: float) -> None:
    info = model.info
    source = info.source_languages[0]
    embed = pb.EmbedRequest(texts=[EXAMPLE], source_language=source, truncate=True)
    for _ in range(CALLS):
        if info.target_languages and time.monotonic() < end:
            await stub.Translate(
                pb.TranslateRequest(
                    texts=[EXAMPLE],
                    source_language=source,
                    target_language=info.target_languages[0],
                    max_output_tokens=OUTPUT_TOKENS,
                    truncate=True,
                )
            )
        if time.monotonic() < end:
            await stub.Embed(embed)
