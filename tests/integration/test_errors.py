"""Status, details and metrics of calls that get no answer."""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.client import OverloadedError, ServerError, TimedOutError
from dragoman.service.settings import ServerSettings
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as rpc
from tests.support.fake_runner import FakeRunner
from tests.support.harness import (
    MAX_CHARACTERS,
    PATIENCE_SECONDS,
    Running,
    eventually,
    manifest,
    serving,
    text_of,
    token_of,
)

SECRET = "zebra"

T, E = pb.TranslateRequest, pb.EmbedRequest

BAD_REQUESTS: list[tuple[Any, str, str, str]] = [
    (T(), "texts", "texts must hold at least one text, is empty", "bad_request"),
    (E(), "texts", "texts must hold at least one text, is empty", "bad_request"),
    (T(texts=["a"] * 6), "texts", "texts must hold at most 5 texts, holds 6", "bad_request"),
    (
        T(texts=["a", SECRET * 100]),
        "texts[1]",
        "texts[1] has 500 characters, the limit is 200; shorten it or set truncate",
        "too_long",
    ),
    (E(texts=["a", text_of(25)]), "texts[1]", "texts[1] has 25 tokens, the limit is 24", "too_long"),
    (
        T(texts=["a"], target_language="tlh"),
        "target_language",
        "target_language 'tlh' is not known; this model has fr",
        "bad_request",
    ),
    (
        E(texts=["a"], source_language="\u00e9\n"),
        "source_language",
        r"source_language '\xe9\n' is not known; this model has en",
        "bad_request",
    ),
    (T(texts=["a"], max_output_tokens=-1), "max_output_tokens", "must be at least 0, is -1", "bad_request"),
    (T(texts=["a"], request_id="x" * 129), "request_id", "must have at most 128 characters, has 129", "bad_request"),
    (E(texts=["a"], pooling=9), "pooling", "pooling is 9, which this server does not know", "bad_request"),  # type: ignore[arg-type]
]


async def failure(running: Running, request: Any) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub = rpc.TranslationServiceStub(channel)
        method: Any = stub.Translate if isinstance(request, pb.TranslateRequest) else stub.Embed
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request)
        return caught.value


def details(error: grpc.aio.AioRpcError) -> Iterator[Any]:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    yield from status.details


@pytest.mark.parametrize("message", [b"\x0a\x01\xff", b"\x0a\x03\xed\xa0\x80", b"\xff"])
async def test_a_malformed_message_is_an_invalid_argument(message: bytes) -> None:
    async with serving() as running:
        async with grpc.aio.insecure_channel(running.address) as channel:
            method: Any = channel.unary_unary("/dragoman.v1.TranslationService/Translate")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(message)
        assert running.value("dragoman_refused_total", reason="bad_request") == 1
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "request cannot be parsed: it is malformed, or holds text that is not UTF-8"


@pytest.mark.parametrize(("request_", "field", "message", "reason"), BAD_REQUESTS)
async def test_a_bad_request_names_field_and_fault(request_: Any, field: str, message: str, reason: str) -> None:
    async with serving(settings=ServerSettings(max_texts=5)) as running:
        error = await failure(running, request_)
        assert running.value("dragoman_refused_total", reason=reason) == 1
        assert running.runner.batches == []
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    shown = error.details()
    assert shown
    assert message in shown
    assert shown.isascii()
    assert SECRET not in shown
    (detail,) = details(error)
    bad = error_details_pb2.BadRequest()
    assert detail.Unpack(bad)
    assert [violation.field for violation in bad.field_violations] == [field]


async def test_an_unknown_model_is_not_found_and_lists_the_models() -> None:
    async with serving() as running:
        error = await failure(running, T(texts=["a"], model="nope\n" * 100))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert (
        error.details() == r"model 'nope\nnope\nnope\nnope\nnope\nnope\nnope\nno...' is not known; this server has fake"
    )


async def test_a_bad_request_does_not_affect_other_calls() -> None:
    async with serving() as running, running.client() as client:
        good = [asyncio.create_task(client.translate([f"kite {number}"])) for number in range(10)]
        await failure(running, T(texts=["." * (MAX_CHARACTERS + 1)]))
        assert [(await call).texts for call in good] == [(f"kite {number}",) for number in range(10)]


async def test_a_text_of_megabytes_is_refused_fast() -> None:
    async with serving() as running:
        started = time.monotonic()
        error = await failure(running, T(texts=["x" * 1_000_000]))
        assert time.monotonic() - started < 5
    assert error.details() == "texts[0] has 1000000 characters, the limit is 200; shorten it or set truncate"


async def test_an_oversized_message_is_refused_but_not_the_next_call() -> None:
    async with serving(settings=ServerSettings(max_message_bytes=10_000)) as running, running.client() as client:
        with pytest.raises(OverloadedError, match="larger than max") as caught:
            await client.translate(["x" * 10_001])
        assert caught.value.retry_after_seconds is None
        assert (await client.translate(["kite"])).texts == ("kite",)


async def test_a_full_queue_gives_a_retry_delay() -> None:
    runner = FakeRunner()
    settings = ServerSettings(max_rows=1, queue_sequences=2)
    async with serving(runner, settings=settings) as running, running.client() as client:
        runner.gate.clear()
        first = asyncio.create_task(client.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        second = asyncio.create_task(client.translate(["boat", "bird"]))
        await eventually(lambda: running.value("dragoman_queue_sequences", model="fake") == 2)
        error = await failure(running, T(texts=["tree"]))
        with pytest.raises(OverloadedError) as caught:
            await client.embed(["tree"])
        runner.gate.set()
        assert (await first).texts == ("kite",)
        assert (await second).texts == ("boat", "bird")
        assert running.value("dragoman_refused_total", reason="queue_full") == 2
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (detail,) = details(error)
    retry = error_details_pb2.RetryInfo()
    assert detail.Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1000
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
    assert caught.value.retry_after_seconds == 1


async def test_a_missed_deadline_is_reported_and_counted() -> None:
    endless = FakeRunner(endless=(token_of("kite"),))
    async with serving(endless, manifest(max_output_tokens=10**9)) as running, running.client() as client:
        with pytest.raises(TimedOutError):
            await client.translate(["kite", "kite"], timeout_seconds=0.2)
        await eventually(lambda: running.value("dragoman_finished_total", model="fake", reason="deadline") == 2)
        assert running.value("dragoman_tokens_total", model="fake", kind="wasted") > 0
        await eventually(lambda: handled(running, "DEADLINE_EXCEEDED") == 1)
        assert running.value("dragoman_active_rows", model="fake") == 0


async def test_a_call_ends_at_the_server_s_time_limit() -> None:
    endless, settings = FakeRunner(endless=(token_of("kite"),)), ServerSettings(max_call_seconds=1, repetition_tokens=0)
    async with (
        serving(endless, manifest(max_output_tokens=10**9), settings) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub: Any = rpc.TranslationServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stub.Translate(pb.TranslateRequest(texts=["kite", "kite"]))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert caught.value.details() == "the call exceeded the server's time limit of 1 s; send fewer texts per call"
        assert handled(running, "DEADLINE_EXCEEDED") == 1
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        assert running.value("dragoman_tokens_total", model="fake", kind="wasted") > 0


@pytest.mark.parametrize("method", ["/dragoman.v1.TranslationService/Translate", "/grpc.health.v1.Health/Check"])
async def test_a_call_without_a_message_ends_at_the_time_limit(method: str) -> None:
    async with (
        serving(settings=ServerSettings(max_call_seconds=1)) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        call: Any = channel.stream_unary(method)()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await call
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert handled(running, "DEADLINE_EXCEEDED") == method.startswith("/dragoman")


async def test_a_row_of_nan_fails_its_own_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    runner = FakeRunner(poison=(token_of("boat"),))
    async with serving(runner) as running, running.client() as client:
        calls = [client.translate([text]) for text in ("kite", "red boat", "bird", "boat", "tree")]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        again = await client.translate(["kite", "bird", "tree", "house"])
        assert running.value("dragoman_finished_total", model="fake", reason="failed") == 2
        assert handled(running, "INTERNAL") == 2
    texts = [None if isinstance(outcome, BaseException) else outcome.texts[0] for outcome in outcomes]
    assert texts == ["kite", None, "bird", None, "tree"]
    assert isinstance(outcomes[1], ServerError)
    assert str(outcomes[1]) == "the model failed on texts[0]: the model's log-probability is nan"
    assert again.texts == ("kite", "bird", "tree", "house")
    assert "boat" not in caplog.text


async def test_a_runtime_error_is_logged_but_not_sent_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    runner = FakeRunner(broken=(token_of("boat"),))
    async with serving(runner) as running, running.client() as client:
        calls = [client.translate([text]) for text in ("kite", "red boat", "bird")]
        kite, boat, bird = await asyncio.gather(*calls, return_exceptions=True)
        assert running.value("dragoman_run_failures_total", model="fake", run="step", cause="error") >= 2
        assert running.value("dragoman_finished_total", model="fake", reason="failed") == 1
    assert isinstance(boat, ServerError)
    assert str(boat) == "the model failed on texts[0]: the runtime raised an error"
    for text, answer in (("kite", kite), ("bird", bird)):
        assert not isinstance(answer, BaseException)
        assert answer.texts == (text,)
    assert "RuntimeError: broken" in caplog.text
    assert "boat" not in caplog.text


@pytest.mark.parametrize("request_", [T(texts=["kite", "boat"]), E(texts=["kite", "boat"])], ids=["Translate", "Embed"])
async def test_memory_refused_for_one_text_allows_a_retry(request_: Any) -> None:
    runner = FakeRunner()
    runner.most_rows = 0
    async with serving(runner) as running, running.client() as client:
        error = await failure(running, request_)
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        runner.most_rows = 1
        assert (await client.translate(["kite", "boat"])).texts == ("kite", "boat")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "not enough memory for texts[0]; retry in 1 s"
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"


async def test_an_unexpected_error_is_internal_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as running, running.client() as client:
        monkeypatch.setattr("dragoman.service.rpc.servicer.translate_response", lambda _: 1 / 0)
        with caplog.at_level(logging.ERROR), pytest.raises(ServerError) as caught:
            await client.translate(["kite"])
        assert handled(running, "INTERNAL") == 1
    assert str(caught.value) == "internal error; see the server's log"
    assert "ZeroDivisionError" in caplog.text


def handled(running: Running, code: str) -> float:
    return sum(
        running.value(
            "grpc_server_handled_total",
            grpc_type="unary",
            grpc_service="dragoman.v1.TranslationService",
            grpc_method=method,
            grpc_code=code,
        )
        for method in ("Translate", "Embed", "GetInfo")
    )
