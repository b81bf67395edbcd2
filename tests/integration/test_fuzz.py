"""Hostile input: nothing that a caller sends is the server's fault, and the next caller does not notice."""

import random
from typing import Any

import grpc
import pytest

from benchmarks.reliability.fuzz import barrage, rudeness, volley
from benchmarks.reliability.hostile import KINDS, METHODS, REFLECTION, SERVICE, Shot, shot
from tests.integration.test_metrics import calls
from tests.support.harness import PATIENCE_SECONDS, eventually, serving

MESSAGES = 600


async def test_what_is_hostile_is_refused_and_the_next_caller_is_answered() -> None:
    rng = random.Random(11)
    async with serving() as running, running.client() as client:
        seen = await barrage(running.address, volley(rng, MESSAGES), callers=16)
        await rudeness(running.address, rng, 30)
        assert seen.faults == []
        assert seen.kinds.total() >= MESSAGES
        assert {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"} <= seen.codes.keys()
        assert (await client.translate(["red kite"])).texts == ("red kite",)
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        assert running.value("dragoman_queue_tokens", model="fake") == 0


@pytest.mark.parametrize("method", [method for method in METHODS if not method.startswith("/dragoman")])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x02\xed\xa0"], ids=["no field", "no UTF-8"])
async def test_bytes_that_are_no_message_are_the_callers_fault_of_any_service(
    method: str, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as running, grpc.aio.insecure_channel(running.address) as channel:
        call: Any = channel.stream_stream(method)(iter([message]), timeout=PATIENCE_SECONDS)  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "request cannot be parsed: it is malformed, or holds text that is not UTF-8"
    assert not caplog.records


@pytest.mark.parametrize("method", [method for method in METHODS if method != REFLECTION])
async def test_a_call_without_a_message_is_the_callers_fault_of_any_service(method: str) -> None:
    async with serving() as running:
        (fault,) = (await barrage(running.address, [Shot("none", method, (), ())], callers=1)).codes
        own = method.startswith(SERVICE)
        assert not own or calls(running, method.rpartition("/")[-1], "INVALID_ARGUMENT") == 1
    assert fault == "INVALID_ARGUMENT"


async def test_a_method_that_health_leaves_out_is_unimplemented_and_not_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running, grpc.aio.insecure_channel(running.address) as channel:
        call: Any = channel.unary_unary("/grpc.health.v1.Health/List")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records


async def test_a_call_that_fails_as_the_servers_fault_is_found() -> None:
    async def broken(messages: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        raise ValueError("broken")

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(
        "dragoman.v1.TranslationService", {"Translate": grpc.unary_unary_rpc_method_handler(broken)}
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    fired = Shot("raw", "/dragoman.v1.TranslationService/Translate", (b"\xff",), ())
    seen = await barrage(f"127.0.0.1:{port}", [fired], callers=1)
    await server.stop(0)
    assert [fault.partition(" ")[0] for fault in seen.faults] == ["UNKNOWN"]
    assert seen.faults[0].endswith("after raw to /dragoman.v1.TranslationService/Translate: ff")


def test_a_seed_draws_the_same_calls_again_and_every_kind_comes_up() -> None:
    drawn = [[shot(rng) for _ in range(500)] for rng in (random.Random(5), random.Random(5))]
    assert drawn[0] == drawn[1]
    assert {each.kind for each in drawn[0]} >= KINDS.keys() - {"many"}
    assert {each.method for each in drawn[0]} >= METHODS.keys()
