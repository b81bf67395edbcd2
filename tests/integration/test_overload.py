"""More calls than can be answered in time: who is refused is told at once, without the work of reading the call."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.service.client import AsyncClient, OverloadedError
from dragoman.service.engine.lane import ENGINE
from dragoman.service.engine.runner import RowInput
from dragoman.service.engine.scheduler import Step
from dragoman.service.interceptor import CROWDED_SECONDS
from dragoman.service.process import NICENESS
from dragoman.service.settings import ServerSettings
from dragoman.v1 import translation_pb2 as pb
from tests.fake_runner import FakeRunner
from tests.harness import PATIENCE_SECONDS, Running, eventually, serving, text_of
from tests.integration.test_metrics import calls

DAMAGED = b"\xff"
TRANSLATE = "/dragoman.v1.TranslationService/Translate"


class SlowRunner(FakeRunner):
    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        time.sleep(0.02)
        return super().step(rows, only, scored)


@asynccontextmanager
async def crowded() -> AsyncIterator[tuple[Running, AsyncClient, grpc.aio.Channel]]:
    """A server that has just refused a call, with more before it than a second's work."""
    settings = ServerSettings(max_rows=1, repetition_tokens=0)
    async with (
        serving(SlowRunner(), settings=settings) as running,
        running.client() as client,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        waiting = [asyncio.create_task(client.translate([text_of(20)])) for _ in range(12)]
        await eventually(lambda: running.value("dragoman_finished_total", model="fake", reason="end") >= 2)
        with pytest.raises(OverloadedError):
            await client.translate([text_of(20)], timeout_seconds=0.3)
        yield running, client, channel
        for task in waiting:
            task.cancel()


async def refusal(channel: grpc.aio.Channel, message: bytes, seconds: float) -> grpc.aio.AioRpcError:
    call: Any = channel.unary_unary(TRANSLATE)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(message, timeout=seconds)
    return caught.value


async def test_a_call_that_is_hopeless_is_refused_before_it_is_read() -> None:
    async with crowded() as (running, _, channel):
        error = await refusal(channel, DAMAGED, seconds=0.3)
        assert running.value("dragoman_refused_total", reason="deadline") == 2
        assert calls(running, "Translate", "RESOURCE_EXHAUSTED") == 2
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(error.trailing_metadata())
    detail = error_details_pb2.RetryInfo()
    assert status_pb2.Status.FromString(trailing["grpc-status-details-bin"]).details[0].Unpack(detail)
    assert detail.retry_delay.ToMilliseconds() == int(trailing["grpc-retry-pushback-ms"]) > 0


async def test_others_are_read_and_answered_meanwhile() -> None:
    async with crowded() as (running, client, channel):
        asked = asyncio.create_task(client.translate(["red kite"], timeout_seconds=PATIENCE_SECONDS))
        error = await refusal(channel, DAMAGED, seconds=PATIENCE_SECONDS)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await asked).texts == ("red kite",)
        assert calls(running, "Translate", "INVALID_ARGUMENT") == 1


async def test_what_the_server_is_can_be_asked_all_the_same() -> None:
    async with crowded() as (_, _, channel):
        info: Any = channel.unary_unary("/dragoman.v1.TranslationService/GetInfo")
        assert pb.GetInfoResponse.FromString(await info(b"", timeout=5)).models[0].name == "fake"


async def test_a_call_without_a_message_is_the_callers_fault() -> None:
    async with crowded() as (_, _, channel):
        call: Any = channel.stream_stream(TRANSLATE)(iter(()), timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_soon_after_the_last_refusal_calls_are_read_as_ever() -> None:
    async with crowded() as (_, _, channel):
        await asyncio.sleep(CROWDED_SECONDS + 0.1)
        error = await refusal(channel, DAMAGED, seconds=0.3)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_threads_that_compute_give_way_to_the_one_that_answers() -> None:
    async with serving(), asyncio.timeout(PATIENCE_SECONDS):
        (thread,) = (each for each in threading.enumerate() if each.name == ENGINE and each.native_id)
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        assert thread.native_id is not None
        await eventually(lambda: os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == min(19, own + NICENESS))
