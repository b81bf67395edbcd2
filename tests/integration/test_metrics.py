"""Scrapes: each call is counted once, gauges return to 0, and nothing of a caller's input appears."""

import asyncio
import random
import string
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.client import ClientError
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from dragoman.service.telemetry.metrics import OBJECTIVES
from dragoman.v1 import translation_pb2 as pb
from tests.support.fake_runner import FakeRunner
from tests.support.harness import (
    MAX_CHARACTERS,
    Running,
    eventually,
    fetch,
    loaded,
    loopback,
    manifest,
    serving,
    token_of,
)

LABELS = {"grpc_type": "unary", "grpc_service": "dragoman.v1.TranslationService"}


def calls(running: Running, method: str, code: str) -> float:
    return running.value("grpc_server_handled_total", **LABELS, grpc_method=method, grpc_code=code)


def raw(channel: grpc.aio.Channel, method: str) -> Any:
    """A method that takes and returns bytes."""
    return channel.unary_unary(method)


def series(running: Running) -> int:
    return sum(len(family.samples) for family in running.server.registry.collect())


async def test_a_scrape_is_in_the_format_of_prometheus() -> None:
    async with serving() as running, running.client() as client:
        await client.translate(["red kite", "boat"])
        status, page = await fetch(running.server, "/metrics")
    assert status == 200
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["dragoman_ready", (("model", "fake"),)] == 1
    assert found["dragoman_tokens_total", (("kind", "output"), ("model", "fake"))] == 5
    assert found["dragoman_tokens_total", (("kind", "source"), ("model", "fake"))] == 5
    assert found["dragoman_model_load_seconds", (("model", "fake"),)] == 1.5
    assert found["dragoman_warmup_seconds", (("model", "fake"),)] == 0.5
    assert found["dragoman_memory_bytes", (("model", "fake"), ("part", "weights"))] == 1000
    assert found["dragoman_provider_as_configured", (("model", "fake"),)] == 1
    assert found["dragoman_cache_slots", (("model", "fake"),)] == ServerSettings().max_rows
    assert found["dragoman_queue_tokens_limit", (("model", "fake"),)] == ServerSettings().queue_tokens
    assert found["dragoman_objective_seconds", (("grpc_method", "Embed"),)] == OBJECTIVES["Embed"]
    assert found["dragoman_source_tokens_sum", (("model", "fake"),)] == 5
    assert found["dragoman_output_tokens_count", (("model", "fake"),)] == 2
    info = {
        "model": "fake",
        "version": "0123456789ab",
        "family": "transformer",
        "precision": "float32",
        "provider": "FakeExecutionProvider",
    }
    assert found["dragoman_model_info", tuple(sorted(info.items()))] == 1
    assert found["process_resident_memory_bytes", ()] > 0
    assert not [name for name, _ in found if name.endswith("_created")]


async def test_a_server_without_its_model_is_alive_but_not_ready() -> None:
    server = Server(loopback(), manifest())
    await server.open()
    try:
        assert await fetch(server, "/healthz") == (200, "ok\n")
        assert await fetch(server, "/readyz") == (503, "no\n")
        assert 'dragoman_ready{model="fake"} 0.0' in (await fetch(server, "/metrics"))[1]
        await server.add(loaded(FakeRunner(), manifest()))
        assert await fetch(server, "/readyz") == (200, "ok\n")
        assert (await fetch(server, "/"))[0] == 404
    finally:
        await server.stop(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_server_whose_engine_died_is_not_alive() -> None:
    runner = FakeRunner()
    runner.rest = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    async with serving(runner) as running:
        async with asyncio.timeout(30):
            while await fetch(running.server, "/healthz") != (503, "no\n"):
                pass
        assert (await fetch(running.server, "/readyz"))[0] == 503


async def test_each_call_is_counted_once_and_gauges_return_to_0() -> None:
    rng = random.Random(7)
    runner = FakeRunner(poison=(token_of("boat"),))
    async with serving(runner) as running, running.client() as client:
        tasks, expected = [], dict.fromkeys(("OK", "INVALID_ARGUMENT", "INTERNAL"), 0)
        for _ in range(200):
            code, text = rng.choice(
                (("OK", "kite"), ("INVALID_ARGUMENT", "." * 300), ("INTERNAL", "boat"), ("", "tree"))
            )
            task = asyncio.create_task(client.translate([text] * rng.randint(1, 5)))
            tasks.append(task)
            if code:
                expected[code] += 1
            else:
                await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: sum(calls(running, "Translate", code) for code in every_code()) == started(running))
        counts = {code: calls(running, "Translate", code) for code in expected}
        assert counts["INVALID_ARGUMENT"] == expected["INVALID_ARGUMENT"]
        assert counts["INTERNAL"] == expected["INTERNAL"]
        assert counts["OK"] >= expected["OK"], "some were answered before they were cancelled"
        assert started(running) <= 200
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        for gauge in ("dragoman_queue_sequences", "dragoman_queue_tokens", "dragoman_active_rows"):
            assert running.value(gauge, model="fake") == 0


def started(running: Running, method: str = "Translate") -> float:
    return running.value("grpc_server_started_total", **LABELS, grpc_method=method)


def every_code() -> list[str]:
    return [code.name for code in grpc.StatusCode]


async def test_a_cancelled_call_is_counted_as_cancelled() -> None:
    runner = FakeRunner()
    async with serving(runner) as running, running.client() as client:
        runner.gate.clear()
        task = asyncio.create_task(client.translate(["kite", "bird"]))
        await eventually(runner.stepping.is_set)
        task.cancel()
        await eventually(lambda: calls(running, "Translate", "CANCELLED") == 1)
        runner.gate.set()
        await eventually(lambda: running.value("dragoman_finished_total", model="fake", reason="cancelled") == 2)


async def test_no_input_of_a_caller_creates_a_series() -> None:
    rng = random.Random(3)
    async with serving() as running, running.client() as client:
        await client.translate(["kite"], to="fr")
        before = series(running)
        words = {"".join(rng.choices(string.ascii_lowercase, k=9)) for _ in range(200)}
        async with grpc.aio.insecure_channel(running.address) as channel:
            for word in words:
                with pytest.raises(ClientError):
                    await client.translate(["kite"], to=word)
                with pytest.raises(ClientError):
                    await client.translate(["kite"], model=word)
                for method in (f"/dragoman.v1.TranslationService/{word}", f"/{word}/Translate"):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await raw(channel, method)(b"", metadata=(("user-agent", word), (word, word)))
                    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert series(running) == before
        _, page = await fetch(running.server, "/metrics")
        assert not [word for word in words if word in page]
        assert len(page) < 200_000


async def test_texts_stay_out_of_the_metrics() -> None:
    async with serving() as running, running.client() as client:
        await client.translate(["zebra"])
        await client.embed(["zebra"])
        with pytest.raises(ClientError):
            await client.translate(["zebra" * MAX_CHARACTERS])
        _, page = await fetch(running.server, "/metrics")
        assert "zebra" not in page
        assert running.value("dragoman_texts_total", model="fake", operation="embed", target_language="other") == 1
        assert running.value("dragoman_texts_total", model="fake", operation="translate", target_language="fr") == 1


async def test_phases_are_observed_for_each_text_and_each_call() -> None:
    async with serving() as running, running.client() as client:
        await client.translate(["kite", "red kite", ""])
        await client.embed(["kite"])
        counts = {
            phase: running.value("dragoman_phase_seconds_count", model="fake", phase=phase)
            for phase in ("queue", "tokenize", "encode", "decode", "detokenize")
        }
        assert counts == {"queue": 3, "tokenize": 2, "encode": 3, "decode": 2, "detokenize": 1}
        assert running.value("dragoman_time_to_first_token_seconds_count", model="fake") == 2


async def test_calls_are_timed_by_method() -> None:
    async with serving() as running:
        async with grpc.aio.insecure_channel(running.address) as channel:
            method = "/dragoman.v1.TranslationService/GetInfo"
            await raw(channel, method)(pb.GetInfoRequest().SerializeToString())
        assert running.value("grpc_server_handling_seconds_count", **LABELS, grpc_method="GetInfo") == 1
        assert calls(running, "GetInfo", "OK") == 1
