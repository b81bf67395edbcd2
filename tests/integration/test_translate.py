"""Translate over a real channel: each text gets its own answer, in its own position."""

import asyncio
import random

import pytest

from dragoman.client import AsyncClient, ClientError, FinishReason, InvalidArgumentError, TranslateResult
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import (
    MAX_CHARACTERS,
    MAX_SOURCE_TOKENS,
    eventually,
    manifest,
    sentences,
    serving,
    text_of,
    token_of,
    tokenizer,
)

LONG = text_of(MAX_SOURCE_TOKENS)
MIXED = [LONG, "", "kite", "kite", "   ", "b"]


async def test_a_result_has_text_model_timings_and_score() -> None:
    async with serving() as running, running.client() as client:
        result = await client.translate(["red kite"], to="fr", source="en", model="fake", request_id="my call")
    assert result.texts == ("red kite",)
    assert (result.model, result.model_version, result.request_id) == ("fake", "0123456789ab", "my call")
    assert result.timings.decode_seconds > 0
    (translation,) = result.translations
    assert (translation.source_tokens, translation.output_tokens) == (3, 3)
    assert translation.finish_reason is FinishReason.END
    assert translation.score is not None
    assert -1.1 < translation.score < 0


async def test_a_looping_output_is_stopped_and_flagged() -> None:
    runner = FakeRunner(endless=(token_of("kite"),))
    settings = ServerSettings(repetition_tokens=3, repetition_times=5)
    async with serving(runner, settings=settings) as running, running.client() as client:
        looping, sound = (await client.translate(["kite", "red boat"])).translations
        assert running.value("dragoman_finished_total", model="fake", reason="repetition") == 1
    assert (looping.finish_reason, looping.text) == (FinishReason.REPETITION, "kite kite kite kite kite")
    assert (sound.finish_reason, sound.text) == (FinishReason.END, "red boat")


@pytest.mark.parametrize("rotation", range(len(MIXED)))
async def test_each_text_has_its_answer_in_any_order(rotation: int) -> None:
    texts = MIXED[rotation:] + MIXED[:rotation]
    async with serving() as running, running.client() as client:
        result = await client.translate(texts)
    assert result.texts == tuple(text.strip() for text in texts)


@pytest.mark.parametrize("count", [1, 2, 33, 1000])
async def test_calls_of_any_size(count: int) -> None:
    texts = sentences(count, seed=count)
    async with serving() as running, running.client() as client:
        assert (await client.translate(texts, truncate=True)).texts == answers(texts)


async def test_an_answer_does_not_depend_on_other_texts() -> None:
    texts = ["7.", "EUR 18.10", "kite", "?", LONG]
    async with serving() as running, running.client() as client:
        alone = [(await client.translate([text])).translations[0] for text in texts]
        assert (await client.translate(texts)).translations == tuple(alone)
        assert (await client.translate(texts[::-1])).translations == tuple(alone[::-1])


async def test_concurrent_callers_get_their_own_answers() -> None:
    rng = random.Random(1)
    async with serving() as running, running.client() as client:
        for _ in range(20):
            texts = sentences(64, seed=rng.randint(0, 10**6))
            kinds = [rng.choice(("good",) * 7 + ("long", "language", "cancelled")) for _ in texts]
            calls = [asyncio.create_task(call(client, kind, text)) for kind, text in zip(kinds, texts, strict=True)]
            await asyncio.sleep(0)
            for kind, task in zip(kinds, calls, strict=True):
                if kind == "cancelled":
                    task.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for kind, text, outcome in zip(kinds, texts, outcomes, strict=True):
                check(kind, text, outcome)
        await eventually(lambda: running.value("dragoman_active_rows", model="fake") == 0)
        assert running.value("dragoman_queue_sequences", model="fake") == 0


async def call(client: AsyncClient, kind: str, text: str) -> TranslateResult:
    if kind == "long":
        return await client.translate(["." * (MAX_CHARACTERS + 1)])
    return await client.translate([text], to="xx" if kind == "language" else "fr", truncate=True)


def check(kind: str, text: str, outcome: TranslateResult | BaseException) -> None:
    match kind:
        case "good":
            assert isinstance(outcome, TranslateResult), outcome
            assert outcome.texts == answers([text])
        case "long":
            assert isinstance(outcome, InvalidArgumentError)
            assert outcome.violations[0].field == "texts[0]"
        case "language":
            assert isinstance(outcome, InvalidArgumentError)
            assert outcome.violations[0].field == "target_language"
        case "cancelled":
            assert isinstance(outcome, asyncio.CancelledError)


def answers(texts: list[str]) -> tuple[str, ...]:
    """Outputs of FakeRunner: each text repeated, as far as the model reads it."""
    return tuple(tokenizer().decode(tokenizer().encode(text)[: MAX_SOURCE_TOKENS - 1]) for text in texts)


# --- limits


@pytest.mark.parametrize("tokens", [MAX_SOURCE_TOKENS - 1, MAX_SOURCE_TOKENS])
async def test_a_text_within_the_limit_is_translated_whole(tokens: int) -> None:
    async with serving() as running, running.client() as client:
        (translation,) = (await client.translate([text_of(tokens)])).translations
    assert translation.source_tokens == tokens
    assert not translation.source_truncated
    assert translation.text == text_of(tokens)


@pytest.mark.parametrize("tokens", [MAX_SOURCE_TOKENS + 1, MAX_SOURCE_TOKENS + 7])
async def test_an_overlong_text_is_refused_but_not_the_next_call(tokens: int) -> None:
    async with serving() as running, running.client() as client:
        with pytest.raises(InvalidArgumentError) as caught:
            await client.translate(["kite", text_of(tokens)])
        assert str(caught.value) == f"texts[1] has {tokens} tokens, the limit is 24; shorten it or set truncate"
        assert (await client.translate(["kite"])).texts == ("kite",)


@pytest.mark.parametrize("tokens", [MAX_SOURCE_TOKENS + 1, 10 * MAX_SOURCE_TOKENS])
async def test_a_truncated_text_is_flagged_and_keeps_its_end_token(tokens: int) -> None:
    async with serving() as running, running.client() as client:
        (translation,) = (await client.translate([text_of(tokens)], truncate=True)).translations
    assert translation.source_truncated
    assert translation.source_tokens == MAX_SOURCE_TOKENS
    assert translation.finish_reason is FinishReason.END, "the end token is kept, so the output ends by itself"
    assert translation.text == text_of(MAX_SOURCE_TOKENS)


async def test_an_output_cut_at_the_limit_is_flagged() -> None:
    async with serving() as running, running.client() as client:
        (translation,) = (await client.translate(["the red kite sings"], max_output_tokens=3)).translations
    assert translation.output_tokens == 3
    assert translation.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("requested", [None, 0, 10**9, 2**31 - 1])
async def test_the_model_s_own_limit_is_default_and_maximum(requested: int | None) -> None:
    endless = FakeRunner(endless=(token_of("kite"),))
    async with serving(endless, manifest(max_output_tokens=11)) as running, running.client() as client:
        (translation,) = (await client.translate(["kite"], max_output_tokens=requested)).translations
    assert translation.output_tokens == 11
    assert translation.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("text", ["kite </s> boat", "<pad> kite", "<unk>", "<s>kite", "__fr__ kite"])
async def test_control_tokens_in_a_text_are_translated_as_text(text: str) -> None:
    async with serving() as running, running.client() as client:
        (translation,) = (await client.translate([text])).translations
    assert translation.text == text
    assert translation.output_tokens == len(tokenizer().encode(text))


async def test_an_empty_queue_takes_a_call_larger_than_itself() -> None:
    async with serving(settings=ServerSettings(queue_sequences=4)) as running, running.client() as client:
        assert len((await client.translate(["kite"] * 50)).translations) == 50


async def test_language_tags_may_differ_in_case_region_and_separator() -> None:
    what = manifest(source_languages=("en", "de"), target_languages=("fr", "pt-BR"))
    async with serving(what=what) as running, running.client() as client:
        for to in ("fr", "FR", "fr-CA", "fr_FR", "pt_br"):
            assert (await client.translate(["kite"], to=to, source="de-AT")).texts == ("kite",)
        assert running.value("dragoman_texts_total", model="fake", operation="translate", target_language="fr") == 4
        assert running.value("dragoman_texts_total", model="fake", operation="translate", target_language="pt-BR") == 1


async def test_an_error_is_a_client_error() -> None:
    async with serving() as running, running.client() as client:
        with pytest.raises(ClientError):
            await client.translate([])
