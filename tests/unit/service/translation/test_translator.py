"""Translator.translate: outputs, scores, lengths and checks of one model."""

import asyncio
import dataclasses
import threading
from collections.abc import Sequence as Row

import pytest
from prometheus_client import CollectorRegistry

from dragoman.bundle.tokenizers import SentencePieceTokenizer
from dragoman.client.values import FinishReason
from dragoman.service.errors import InvalidRequestError, TooLongError, UnknownLanguageError
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.options import TranslateOptions
from dragoman.service.translation.translator import Translator
from tests.support.fake_runner import END, FakeRunner, log_prob_of
from tests.support.harness import MAX_CHARACTERS, MAX_SOURCE_TOKENS, manifest, text_of, token_of, tokenizer
from tests.unit.service.translation.bench import FOREVER, SIZE_LIMITS, translating


async def test_a_translation_has_text_counts_score_and_timings() -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["red kite"], TranslateOptions())
    (translation,) = result.translations
    assert translation.text == "red kite"
    assert translation.finish_reason is FinishReason.END
    assert not translation.source_truncated
    assert (translation.source_tokens, translation.output_tokens) == (3, 3)
    tokens = (token_of("red"), token_of("kite"), END)
    assert translation.score == pytest.approx(sum(map(log_prob_of, tokens)) / 3)
    assert (result.model, result.model_version) == ("fake", "0123456789ab")
    assert result.timings.decode_seconds > 0


async def test_unwanted_scores_are_not_computed() -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["red kite"], TranslateOptions(scores=False))
        assert bench.runner.scored == [False] * 3
    assert result.translations[0].score is None
    assert result.translations[0].text == "red kite"


async def test_calls_with_and_without_scores_share_a_batch() -> None:
    async with translating() as bench:
        bench.runner.gate.clear()
        calls = [bench.translator.translate(["red kite"], TranslateOptions(scores=scores)) for scores in (True, False)]
        both = asyncio.gather(*calls)
        await asyncio.sleep(0)
        bench.runner.gate.set()
        with_scores, without = await both
    tokens = (token_of("red"), token_of("kite"), END)
    assert with_scores.translations[0].score == pytest.approx(sum(map(log_prob_of, tokens)) / 3)
    assert without.translations[0].score is None


async def test_blank_texts_are_answered_without_the_engine() -> None:
    async with translating() as bench:
        bench.engine.stop()
        result = await bench.translator.translate(["", "  ", "\n"], TranslateOptions())
    assert result.texts == ("", "", "")
    for translation in result.translations:
        assert translation.finish_reason is FinishReason.END
        assert (translation.source_tokens, translation.output_tokens, translation.score) == (0, 0, None)


async def test_blank_texts_keep_their_position() -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["", "kite", " ", "boat", ""], TranslateOptions())
    assert result.texts == ("", "kite", "", "boat", "")


@pytest.mark.parametrize(("requested", "tokens"), [(1, 1), (3, 3), (0, 5), (10**9, 5)])
async def test_output_length_obeys_caller_and_model(requested: int, tokens: int) -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["red kite old boat"], TranslateOptions(max_output_tokens=requested))
    (translation,) = result.translations
    assert translation.output_tokens == tokens
    assert translation.finish_reason is (FinishReason.LENGTH if tokens < 5 else FinishReason.END)


async def test_an_endless_output_stops_at_the_model_s_limit() -> None:
    what = manifest(max_output_tokens=11)
    async with translating(FakeRunner(endless=(token_of("kite"),)), what) as bench:
        result = await bench.translator.translate(["kite"], TranslateOptions(max_output_tokens=10**9))
    assert result.texts == (" ".join(["kite"] * 11),)
    assert result.translations[0].finish_reason is FinishReason.LENGTH


async def test_a_negative_output_limit_is_refused() -> None:
    async with translating() as bench:
        with pytest.raises(InvalidRequestError, match="max_output_tokens must be at least 0, is -1"):
            await bench.translator.translate(["kite"], TranslateOptions(max_output_tokens=-1))


async def test_one_overlong_text_keeps_the_call_out_of_the_queue() -> None:
    async with translating() as bench:
        with pytest.raises(TooLongError) as caught:
            await bench.translator.translate(["kite", text_of(MAX_SOURCE_TOKENS + 1)], TranslateOptions())
        assert caught.value.field == "texts[1]"
        assert bench.runner.batches == []


async def test_both_languages_are_checked() -> None:
    what = manifest(source_languages=("en", "de"), target_languages=("fr", "it"))
    async with translating(what=what) as bench:
        with pytest.raises(UnknownLanguageError, match="source_language is missing; this model has en, de"):
            await bench.translator.translate(["kite"], TranslateOptions(target_language="fr"))
        with pytest.raises(UnknownLanguageError, match="target_language 'nl' is not known"):
            await bench.translator.translate(["kite"], TranslateOptions(source_language="en", target_language="nl"))
        result = await bench.translator.translate(
            ["kite"], TranslateOptions(source_language="EN-gb", target_language="it_IT")
        )
        assert result.texts == ("kite",)
        assert (
            bench.registry.get_sample_value(
                "dragoman_texts_total", {"model": "fake", "operation": "translate", "target_language": "it"}
            )
            == 1
        )


async def test_output_length_is_bounded_by_source_length() -> None:
    what = manifest(max_output_tokens=FOREVER)
    bounded = dataclasses.replace(what.decoding, output_factor=1.5, output_margin=4)
    runner = FakeRunner(endless=(token_of("kite"),))
    async with translating(runner, dataclasses.replace(what, decoding=bounded)) as bench:
        result = await bench.translator.translate(["kite", "red kite flies"], TranslateOptions())
    sources = [translation.source_tokens for translation in result.translations]
    assert [translation.output_tokens for translation in result.translations] == [int(1.5 * n) + 4 for n in sources]


async def test_characters_are_counted_before_tokens() -> None:
    async with translating() as bench:
        with pytest.raises(TooLongError, match=f"has {MAX_CHARACTERS + 1} characters, the limit is {MAX_CHARACTERS}"):
            await bench.translator.translate(["." * (MAX_CHARACTERS + 1)], TranslateOptions())


async def test_large_calls_are_tokenized_off_the_event_loop() -> None:
    threads: set[str] = set()

    class RecordingTokenizer(SentencePieceTokenizer):
        def __init__(self) -> None:
            self.__dict__ = tokenizer().__dict__

        def encode(self, text: str, source_language: str = "", target_language: str = "") -> list[int]:
            threads.add(threading.current_thread().name)
            return super().encode(text)

        def decode(self, ids: Row[int]) -> str:
            threads.add(threading.current_thread().name)
            return super().decode(ids)

    async with translating() as bench:
        metrics = ModelMetrics(Metrics(CollectorRegistry()), "fake", ("fr",))
        translator = Translator(manifest(), RecordingTokenizer(), bench.engine, SIZE_LIMITS, metrics)
        threads.clear()
        texts = [text_of(24)] * 200
        assert (await translator.translate(texts, TranslateOptions())).texts == tuple(texts)
    assert threading.current_thread().name not in threads
