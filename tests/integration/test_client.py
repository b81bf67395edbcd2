"""The Python clients, with and without asyncio."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from dragoman.client import (
    AsyncClient,
    Client,
    InvalidArgumentError,
    NotFoundError,
    Pooling,
    ServerLimits,
    TimedOutError,
    TranslateResult,
    UnavailableError,
    Violation,
)
from tests.support.fake_runner import FakeRunner
from tests.support.harness import (
    DIMENSION,
    PATIENCE_SECONDS,
    eventually,
    free_port,
    manifest,
    serving,
    text_of,
    token_of,
)


async def test_both_clients_return_the_same_results() -> None:
    async with serving() as running:

        def in_turn() -> tuple[object, ...]:
            with Client(running.address) as client:
                return (
                    client.translate(["red kite"], to="fr", request_id="7").translations,
                    client.embed(["red kite"], normalize=False).embeddings[0].values.tolist(),
                    client.info().models,
                )

        async with AsyncClient(running.address) as client:
            together = (
                (await client.translate(["red kite"], to="fr", request_id="7")).translations,
                (await client.embed(["red kite"], normalize=False)).embeddings[0].values.tolist(),
                (await client.info()).models,
            )
        assert await asyncio.to_thread(in_turn) == together


async def test_info_describes_models_and_limits() -> None:
    async with serving(what=manifest(name="m", target_languages=("fr", "de"))) as running, running.client() as client:
        info = await client.info()
    (model,) = info.models
    assert (model.name, model.target_languages, model.provider) == ("m", ("fr", "de"), "FakeExecutionProvider")
    assert (model.max_source_tokens, model.max_output_tokens, model.max_source_characters) == (24, 48, 200)
    assert (model.embedding_dimension, model.threads) == (DIMENSION, 1)
    assert info.runtime_version == "0.0"
    assert info.resident_memory_bytes > 10_000_000
    assert info.limits == ServerLimits(
        message_bytes=4 * 2**20,
        answer_bytes=64 * 2**20,
        texts=1024,
        metadata_bytes=16384,
        connection_calls=1024,
        connection_age_seconds=1800,
        connection_idle_seconds=600,
        ping_seconds=5,
        call_seconds=300,
    )


async def test_embeddings_have_their_shape_and_dtype() -> None:
    async with serving() as running, running.client() as client:
        for pooling in (Pooling.MEAN, Pooling.CLS, Pooling.MAX):
            result = await client.embed(["kite", "", "red boat"], pooling=pooling)
            for embedding in result.embeddings:
                assert embedding.values.shape == (DIMENSION,)
                assert embedding.values.dtype == np.float32
                assert np.linalg.norm(embedding.values) == pytest.approx(1, abs=1e-4)
                assert embedding.tokens == ()
        result = await client.embed(["", "red kite"], pooling=Pooling.NONE, normalize=False)
        blank, text = result.embeddings
        assert blank.values.shape == (1, DIMENSION)
        assert text.values.shape == (3, DIMENSION)
        assert [token.id for token in text.tokens] == text.values[:, 0].tolist()


async def test_an_embedding_of_a_truncated_text_is_flagged() -> None:
    async with serving() as running, running.client() as client:
        with pytest.raises(InvalidArgumentError):
            await client.embed([text_of(25)])
        whole, cut = (await client.embed([text_of(24), text_of(25)], truncate=True)).embeddings
    assert (whole.source_truncated, cut.source_truncated) == (False, True)
    assert (whole.source_tokens, cut.source_tokens) == (24, 24)


Translate = Callable[..., Awaitable[TranslateResult]]


@asynccontextmanager
async def translate_of(kind: str, address: str) -> AsyncIterator[Translate]:
    """`translate` of one of the clients, awaitable in both cases."""
    if kind == "async":
        async with AsyncClient(address, retries=None) as client:
            yield client.translate
    else:
        with Client(address, retries=None) as blocking:
            yield lambda *texts, **more: asyncio.to_thread(blocking.translate, *texts, **more)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_errors_are_typed_and_name_the_field(kind: str) -> None:
    async with serving() as running, translate_of(kind, running.address) as translate:
        with pytest.raises(InvalidArgumentError) as caught:
            await translate(["kite", text_of(25)])
        fault = "has 25 tokens, the limit is 24; shorten it or set truncate"
        assert caught.value.violations == (Violation("texts[1]", fault),)
        with pytest.raises(NotFoundError, match="model 'x' is not known; this server has fake"):
            await translate(["kite"], model="x")


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_missing_server_is_unavailable(kind: str) -> None:
    async with translate_of(kind, f"127.0.0.1:{free_port()}") as translate:
        with pytest.raises(UnavailableError):
            await translate(["kite"])


async def test_closing_a_client_ends_its_running_calls() -> None:
    runner = FakeRunner()
    async with serving(runner) as running:
        runner.gate.clear()
        with Client(running.address) as client:
            call = asyncio.create_task(asyncio.to_thread(client.translate, ["kite"]))
            await eventually(runner.stepping.is_set)
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(call, PATIENCE_SECONDS)
        runner.gate.set()


async def test_the_time_limit_is_the_client_s_or_the_call_s() -> None:
    runner = FakeRunner()
    async with serving(runner) as running:
        runner.gate.clear()
        async with AsyncClient(running.address, timeout_seconds=0.1) as client:
            with pytest.raises(TimedOutError):
                await client.translate(["kite"])
        async with AsyncClient(running.address) as client:
            with pytest.raises(TimedOutError):
                await client.embed(["kite"], timeout_seconds=0.1)
        runner.gate.set()


async def test_cancelling_an_awaited_call_cancels_it_on_the_server() -> None:
    runner = FakeRunner(endless=(token_of("kite"),))
    async with serving(runner, manifest(max_output_tokens=10**9)) as running, running.client() as client:
        task = asyncio.create_task(client.translate(["kite"]))
        await eventually(runner.stepping.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: running.value("dragoman_finished_total", model="fake", reason="cancelled") == 1)


async def test_an_output_limit_beyond_the_field_s_range_is_capped() -> None:
    async with serving() as running, running.client() as client:
        asked = await client.translate(["red kite"], max_output_tokens=10**12)
        assert asked.translations == (await client.translate(["red kite"])).translations


def test_a_single_text_instead_of_a_list_is_refused() -> None:
    with Client() as client, pytest.raises(ValueError, match="texts must be a list of texts, is a single text"):
        client.translate("kite")


async def test_responses_may_exceed_grpc_s_default_limit() -> None:
    texts = [text_of(24)] * 1000
    async with serving() as running, running.client() as client:
        result = await client.embed(texts * 1, pooling=Pooling.NONE)
    assert sum(len(embedding.tokens) for embedding in result.embeddings) == 24_000


async def test_loopback_calls_bypass_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with serving() as running, running.client() as client:
        assert (await client.translate(["kite"])).texts == ("kite",)
