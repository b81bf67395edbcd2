"""Trial calls: a server's first calls to a model, made by itself before it accepts others.

Some work is slow only once: lazy imports, the interpreter's specialization, gRPC's first call, the tokenizer's first
text. The trial calls take that cost over gRPC, on a private socket and with throw-away metrics.
"""

import logging
import tempfile
import time
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from dragoman.client.values import ServerLimits
from dragoman.service.banner import EXAMPLE
from dragoman.service.lifecycle import Lifecycle, State
from dragoman.service.rpc.auth import Authenticator, CallerLimits
from dragoman.service.rpc.interceptor import CallInterceptor
from dragoman.service.rpc.servicer import TranslationService
from dragoman.service.telemetry.memory_report import MemoryReporter
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.translation.served_model import ServedModel
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from dragoman.v1.names import METHODS, SERVICE

log = logging.getLogger(__name__)

CALLS = 16
"""Trial calls per method. The interpreter specializes code after some eight runs."""

OUTPUT_TOKENS = 8

SHARED_MEMORY = "/dev/shm"
"""Folder in memory that any user may write to on Linux."""


async def rehearse(model: ServedModel, limits: ServerLimits, seconds: float) -> None:
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
