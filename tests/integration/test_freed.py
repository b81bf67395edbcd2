"""A call frees its objects when it ends, with or without an error, and leaves no reference cycles.

Python's cycle collector stops all calls, and at overload most of them end with an error.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from dragoman.service.engine.queue import MIN_STALE_DEADLINES
from dragoman.service.settings import ServerSettings
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from tests.integration.test_overload import crowded
from tests.support.fake_runner import FakeRunner
from tests.support.harness import Running, eventually, health, manifest, serving, text_of, token_of

ENDLESS, BROKEN = "kite", "boat"

METHOD = "/dragoman.v1.TranslationService/Translate"

Channel = grpc.aio.Channel

TIMES = 3
"""Repetitions of each call."""


def translate(*texts: str, timeout: float | None = None, **others: Any) -> Callable[[Channel], Awaitable[Any]]:
    return lambda channel: rpc.TranslationServiceStub(channel).Translate(
        pb.TranslateRequest(texts=texts, **others), timeout=timeout
    )


def raw(method: str, message: bytes) -> Callable[[Channel], Awaitable[Any]]:
    def call(channel: Channel) -> Awaitable[Any]:
        multi_callable: Any = channel.unary_unary(method)
        answer: Awaitable[Any] = multi_callable(message)
        return answer

    return call


async def without_a_message(channel: Channel) -> None:
    method: Any = channel.stream_unary(METHOD)
    await method(iter(()))


async def cancelled(channel: Channel) -> None:
    call = rpc.TranslationServiceStub(channel).Translate(pb.TranslateRequest(texts=[ENDLESS]))
    await asyncio.sleep(0.05)
    call.cancel()
    await call


CALLS: dict[str, tuple[grpc.StatusCode, Callable[[Channel], Awaitable[Any]]]] = {
    "translated": (grpc.StatusCode.OK, translate("", *["bird"] * MIN_STALE_DEADLINES)),
    "embedded": (
        grpc.StatusCode.OK,
        lambda channel: rpc.TranslationServiceStub(channel).Embed(pb.EmbedRequest(texts=["bird"])),
    ),
    "informed": (grpc.StatusCode.OK, lambda channel: rpc.TranslationServiceStub(channel).GetInfo(pb.GetInfoRequest())),
    "healthy": (grpc.StatusCode.OK, lambda channel: health(channel).Check(health_pb2.HealthCheckRequest())),
    "of unknown health": (
        grpc.StatusCode.NOT_FOUND,
        lambda channel: health(channel).Check(health_pb2.HealthCheckRequest(service="none")),
    ),
    "without texts": (grpc.StatusCode.INVALID_ARGUMENT, translate()),
    "too long": (grpc.StatusCode.INVALID_ARGUMENT, translate(text_of(25))),
    "for an unknown model": (grpc.StatusCode.NOT_FOUND, translate("bird", model="none")),
    "unreadable": (grpc.StatusCode.INVALID_ARGUMENT, raw(METHOD, b"\xff")),
    "without a message": (grpc.StatusCode.INVALID_ARGUMENT, without_a_message),
    "for an unknown method": (grpc.StatusCode.UNIMPLEMENTED, raw(METHOD + "s", b"")),
    "that fails": (grpc.StatusCode.INTERNAL, translate("bird", BROKEN)),
    "late": (grpc.StatusCode.DEADLINE_EXCEEDED, translate(ENDLESS, timeout=0.1)),
    "cancelled": (grpc.StatusCode.CANCELLED, cancelled),
}


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return grpc.StatusCode.CANCELLED
    return grpc.StatusCode.OK


@contextmanager
def cycles() -> Iterator[list[str]]:
    """Yields a list that finally holds the names of the service's objects left in cycles."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += filter(None, map(_name, gc.garbage))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _name(garbage: object) -> str:
    """Its qualified name; empty for an object that is not the service's."""
    if isinstance(garbage, FrameType):
        module, name = garbage.f_globals.get("__name__", ""), garbage.f_code.co_qualname
    else:
        module, name = type(garbage).__module__, type(garbage).__qualname__
    return f"{module}.{name}" if module.startswith(("dragoman.service.", "dragoman.v1.")) else ""


async def left_by(call: Callable[[], Awaitable[Any]], code: grpc.StatusCode, running: Running) -> list[str]:
    """Objects left in cycles by TIMES calls, after a first one."""
    with cycles() as found:
        for _ in range(TIMES):
            assert await code_of(call()) is code
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("kind", CALLS)
async def test_a_call_leaves_no_cycles(kind: str) -> None:
    code, call = CALLS[kind]
    runner = FakeRunner(endless=(token_of(ENDLESS),), broken=(token_of(BROKEN),))
    async with (
        serving(runner, manifest(max_output_tokens=10**9)) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        assert await code_of(call(channel)) is code
        assert await left_by(lambda: call(channel), code, running) == []


async def test_a_call_without_a_token_leaves_no_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKENS", "a-token-of-the-tests")
    async with serving(settings=ServerSettings()) as running, grpc.aio.insecure_channel(running.address) as channel:
        call = CALLS["translated"][1]
        assert await left_by(lambda: call(channel), grpc.StatusCode.UNAUTHENTICATED, running) == []


async def test_a_call_refused_at_overload_leaves_no_cycles() -> None:
    async with crowded() as (running, _), grpc.aio.insecure_channel(running.address) as channel:
        unreachable = translate(text_of(20), timeout=0.3)
        with cycles() as found:
            for _ in range(TIMES):
                assert await code_of(unreachable(channel)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert found == []
