import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from collections.abc import Sequence as Row
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dragoman.bundle.manifest import Manifest
from dragoman.bundle.rules import EmbeddingRules
from dragoman.bundle.tokenizers import SentencePieceTokenizer
from dragoman.client.values import FinishReason, Pooling
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Finish, Sequence
from dragoman.service.errors import (
    DeadlineExceededError,
    DeadlineForecast,
    DeadlineUnreachableError,
    InvalidRequestError,
    ModelFailedError,
    NotServingError,
    OverloadedError,
    TooLateError,
    TooLongError,
    UnknownLanguageError,
)
from dragoman.service.telemetry.metrics import Metrics, ModelMetrics
from dragoman.service.translation.translator import CallLimits, Translator
from tests.support.fake_runner import END, START, FakeRunner, log_prob_of
from tests.support.harness import (
    MAX_CHARACTERS,
    MAX_SOURCE_TOKENS,
    encoder_manifest,
    eventually,
    manifest,
    text_of,
    token_of,
    tokenizer,
)
from tests.support.letters import FR, described

FOREVER = 10**9

LIMITS = BatchLimits(rows=4, tokens=10 * FOREVER, encode_tokens=1000, queue_sequences=8, queue_tokens=10 * FOREVER)


@dataclass
class Bench:
    translator: Translator
    engine: Engine
    runner: FakeRunner
    registry: CollectorRegistry

    def finished(self, reason: str) -> float:
        return self.registry.get_sample_value("dragoman_finished_total", {"model": "fake", "reason": reason}) or 0.0


@asynccontextmanager
async def translating(
    runner: FakeRunner | None = None, what: Manifest | None = None, calls: CallLimits | None = None
) -> AsyncIterator[Bench]:
    runner, what, registry = runner or FakeRunner(), what or manifest(), CollectorRegistry()
    metrics = ModelMetrics(Metrics(registry), what.name, what.target_languages)
    engine = Engine([runner], LIMITS, what.decoding.end_ids, metrics)
    engine.start()
    try:
        translator = Translator(what, tokenizer(), engine, calls or CallLimits(1000, 2**20), metrics)
        yield Bench(translator, engine, runner, registry)
    finally:
        runner.gate.set()
        engine.stop()


# --- translation


async def test_a_translation_with_all_that_is_said_of_it() -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["red kite"])
    (translation,) = result.translations
    assert translation.text == "red kite"
    assert translation.finish_reason is FinishReason.END
    assert not translation.source_truncated
    assert (translation.source_tokens, translation.output_tokens) == (3, 3)
    tokens = (token_of("red"), token_of("kite"), END)
    assert translation.score == pytest.approx(sum(map(log_prob_of, tokens)) / 3)
    assert (result.model, result.model_version) == ("fake", "0123456789ab")
    assert result.timings.decode_seconds > 0


async def test_scores_are_neither_made_nor_told_where_nobody_wants_them() -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["red kite"], scores=False)
        assert bench.runner.scored == [False] * 3
    assert result.translations[0].score is None
    assert result.translations[0].text == "red kite"


async def test_who_wants_scores_gets_them_beside_one_who_does_not() -> None:
    async with translating() as bench:
        bench.runner.gate.clear()
        calls = [bench.translator.translate(["red kite"], scores=scores) for scores in (True, False)]
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
        result = await bench.translator.translate(["", "  ", "\n"])
    assert result.texts == ("", "", "")
    for translation in result.translations:
        assert translation.finish_reason is FinishReason.END
        assert (translation.source_tokens, translation.output_tokens, translation.score) == (0, 0, None)


async def test_blank_texts_keep_their_place_between_others() -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["", "kite", " ", "boat", ""])
    assert result.texts == ("", "kite", "", "boat", "")


@pytest.mark.parametrize(("asked", "tokens"), [(1, 1), (3, 3), (0, 5), (10**9, 5)])
async def test_outputs_are_as_long_as_the_caller_and_the_model_allow(asked: int, tokens: int) -> None:
    async with translating() as bench:
        result = await bench.translator.translate(["red kite old boat"], max_output_tokens=asked)
    (translation,) = result.translations
    assert translation.output_tokens == tokens
    assert translation.finish_reason is (FinishReason.LENGTH if tokens < 5 else FinishReason.END)


async def test_an_output_that_never_ends_stops_at_the_model_s_limit() -> None:
    what = manifest(max_output_tokens=11)
    async with translating(FakeRunner(endless=(token_of("kite"),)), what) as bench:
        result = await bench.translator.translate(["kite"], max_output_tokens=10**9)
    assert result.texts == (" ".join(["kite"] * 11),)
    assert result.translations[0].finish_reason is FinishReason.LENGTH


async def test_a_negative_limit_is_an_error() -> None:
    async with translating() as bench:
        with pytest.raises(InvalidRequestError, match="max_output_tokens must be at least 0, is -1"):
            await bench.translator.translate(["kite"], max_output_tokens=-1)


async def test_nothing_is_queued_for_a_call_with_one_bad_text() -> None:
    async with translating() as bench:
        with pytest.raises(TooLongError) as caught:
            await bench.translator.translate(["kite", text_of(MAX_SOURCE_TOKENS + 1)])
        assert caught.value.field == "texts[1]"
        assert bench.runner.batches == []


async def test_languages_are_checked_on_both_sides() -> None:
    what = manifest(source_languages=("en", "de"), target_languages=("fr", "it"))
    async with translating(what=what) as bench:
        with pytest.raises(UnknownLanguageError, match="source_language is missing; this model has en, de"):
            await bench.translator.translate(["kite"], target_language="fr")
        with pytest.raises(UnknownLanguageError, match="target_language 'nl' is not known"):
            await bench.translator.translate(["kite"], source_language="en", target_language="nl")
        result = await bench.translator.translate(["kite"], source_language="EN-gb", target_language="it_IT")
        assert result.texts == ("kite",)
        assert (
            bench.registry.get_sample_value(
                "dragoman_texts_total", {"model": "fake", "operation": "translate", "target_language": "it"}
            )
            == 1
        )


async def test_a_great_deal_of_text_is_tokenized_and_written_beside_the_loop() -> None:
    threads: set[str] = set()

    class Watching(SentencePieceTokenizer):
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
        translator = Translator(manifest(), Watching(), bench.engine, CallLimits(1000, 2**20), metrics)
        threads.clear()
        texts = [text_of(24)] * 200
        assert (await translator.translate(texts)).texts == tuple(texts)
    assert threading.current_thread().name not in threads


# --- languages


MANY = manifest(source_languages=("en", "fr"), target_languages=("en", "fr"))


@asynccontextmanager
async def speaking(**description: Any) -> AsyncIterator[Translator]:
    """A model of two languages, whose FakeRunner says the tag it was prompted with, and which reads its tags aloud."""
    async with translating(FakeRunner(prompt_tokens=2), MANY) as bench:
        tokenizer = described(control_ids=(END,), unknown_id=None, **description)
        metrics = ModelMetrics(Metrics(CollectorRegistry()), "fake", MANY.target_languages)
        yield Translator(MANY, tokenizer, bench.engine, CallLimits(1000, 2**20), metrics)


async def test_source_and_target_have_their_tokens() -> None:
    async with speaking(before=("source",), prompt=(START, "target")) as translator:
        for source, target, said in (
            ("en", "fr", "\xf0\xe0ab"),
            ("fr", "en", "\xe0\xf0ab"),
            ("fr", "fr", "\xf0\xf0ab"),
        ):
            result = await translator.translate(["ab"], source_language=source, target_language=target)
            assert result.texts == (said,)
            assert (result.translations[0].source_tokens, result.translations[0].output_tokens) == (4, 5)


async def test_calls_with_other_targets_run_together() -> None:
    async with speaking(before=("source",), prompt=(START, "target")) as translator:
        calls = [
            translator.translate([text] * 2, source_language="en", target_language=target)
            for text, target in (("ab", "fr"), ("cde", "en"), ("f", "fr"), ("gh", "en"))
        ]
        found = [result.texts for result in await asyncio.gather(*calls)]
    assert found == [("\xf0\xe0ab",) * 2, ("\xe0\xe0cde",) * 2, ("\xf0\xe0f",) * 2, ("\xe0\xe0gh",) * 2]


async def test_the_family_s_own_names_of_languages_are_understood() -> None:
    async with speaking(before=("source",), prompt=(START, "target")) as translator:
        result = await translator.translate(["ab"], source_language="eng", target_language="FRA")
    assert result.texts == ("\xf0\xe0ab",)


@pytest.mark.parametrize(
    ("source", "target", "field"), [("en", "", "target"), ("", "fr", "source"), ("en", "xx", "target")]
)
async def test_one_of_several_languages_must_be_named_and_known(source: str, target: str, field: str) -> None:
    async with speaking(before=("source",), prompt=(START, "target")) as translator:
        with pytest.raises(UnknownLanguageError, match="this model has en, fr") as caught:
            await translator.translate(["ab"], source_language=source, target_language=target)
    assert caught.value.field == f"{field}_language"


async def test_a_blank_text_of_any_language_is_answered_without_the_engine() -> None:
    async with speaking(before=("target",), after=(END, "source"), prompt=(START, "target")) as translator:
        result = await translator.translate(["", "ab", " "], source_language="en", target_language="fr")
    assert [translation.source_tokens for translation in result.translations] == [0, 5, 0]


async def test_a_cut_source_keeps_all_the_tokens_at_its_end() -> None:
    async with speaking(after=(END, "source"), prompt=(START, "target")) as translator:
        texts = ["x" * (MAX_SOURCE_TOKENS - 2), "x" * (MAX_SOURCE_TOKENS - 1)]
        result = await translator.embed(texts, source_language="fr", pooling=Pooling.NONE, truncate=True)
    ids = [[token.id for token in embedding.tokens] for embedding in result.embeddings]
    assert ids[0] == ids[1] == [*[ord("x")] * (MAX_SOURCE_TOKENS - 2), END, FR]
    assert [embedding.source_truncated for embedding in result.embeddings] == [False, True]


async def test_an_embedding_has_the_source_s_token_and_no_target_s() -> None:
    async with speaking(before=("target", "source"), prompt=(START, "target")) as translator:
        result = await translator.embed(["ab"], source_language="fr", pooling=Pooling.NONE)
    assert [token.id for token in result.embeddings[0].tokens] == [FR, ord("a"), ord("b"), END]


# --- callers who do not wait to the end


async def test_a_cancelled_call_takes_its_sequences_out_of_the_engine() -> None:
    runner = FakeRunner()
    async with translating(runner) as bench:
        runner.gate.clear()
        call = asyncio.create_task(bench.translator.translate(["kite", "boat", "red kite"]))
        await eventually(runner.stepping.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        runner.gate.set()
        await eventually(lambda: bench.finished("cancelled") == 3)
        load = bench.engine.load()
        assert (load.active_rows, load.waiting_sequences, load.waiting_tokens) == (0, 0, 0)


async def test_a_call_without_time_left_is_refused_before_it_is_queued() -> None:
    async with translating() as bench:
        with pytest.raises(TooLateError):
            await bench.translator.translate(["kite"], seconds_left=0)
        with pytest.raises(TooLateError):
            await bench.translator.embed(["kite"], seconds_left=-1)
        assert bench.runner.batches == []


async def test_a_call_whose_deadline_passes_in_the_engine_is_late() -> None:
    async with translating(FakeRunner(endless=(token_of("kite"),)), manifest(max_output_tokens=FOREVER)) as bench:
        with pytest.raises(DeadlineExceededError):
            await bench.translator.translate(["kite"], seconds_left=0.05)
        assert bench.finished("deadline") == 1
    tokens = bench.registry.get_sample_value("dragoman_tokens_total", {"model": "fake", "kind": "wasted"})
    assert tokens
    assert tokens > 0


async def test_a_call_whose_text_made_way_in_the_queue_is_told_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_way(sequences: Row[Sequence]) -> None:
        for sequence in sequences:
            sequence.end(Finish.DEADLINE, 0.0, DeadlineUnreachableError(DeadlineForecast(4.96, 2.0)))
            sequence.done(sequence)

    async with translating() as bench:
        monkeypatch.setattr(bench.engine, "submit", make_way)
        with pytest.raises(DeadlineUnreachableError, match=r"deadline by about 3\.0 s .*; come again in 3 s"):
            await bench.translator.translate(["kite"], seconds_left=2.0)


async def test_an_output_is_bounded_by_the_length_of_its_source() -> None:
    what = manifest(max_output_tokens=FOREVER)
    bounded = dataclasses.replace(what.decoding, output_factor=1.5, output_margin=4)
    runner = FakeRunner(endless=(token_of("kite"),))
    async with translating(runner, dataclasses.replace(what, decoding=bounded)) as bench:
        result = await bench.translator.translate(["kite", "red kite flies"])
    sources = [translation.source_tokens for translation in result.translations]
    assert [translation.output_tokens for translation in result.translations] == [int(1.5 * n) + 4 for n in sources]


# --- failures


async def test_one_failed_text_fails_the_call_and_frees_the_others() -> None:
    runner = FakeRunner(poison=(token_of("boat"),), endless=(token_of("bird"),))
    async with translating(runner, manifest(max_output_tokens=FOREVER)) as bench:
        with pytest.raises(ModelFailedError) as caught:
            await bench.translator.translate(["", "bird", "red boat", "bird"])
        assert str(caught.value) == "the model failed on texts[2]: the model's log-probability is nan"
        await eventually(lambda: bench.finished("cancelled") == 2)
        assert (await bench.translator.translate(["kite"])).texts == ("kite",)


async def test_an_error_of_the_runtime_is_not_shown_to_the_caller() -> None:
    async with translating(FakeRunner(broken=(token_of("kite"),))) as bench:
        with pytest.raises(ModelFailedError) as caught:
            await bench.translator.translate(["kite"])
        assert str(caught.value) == "the model failed on texts[0]: the runtime raised an error"
        assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_full_queue_asks_to_come_again() -> None:
    runner = FakeRunner()
    async with translating(runner) as bench:
        runner.gate.clear()
        first = asyncio.create_task(bench.translator.translate(["kite"] * 12))
        await eventually(lambda: bench.engine.load().active_rows == 4)
        with pytest.raises(OverloadedError, match="the queue holds 8 of 8 sequences; come again in 1 s"):
            await bench.translator.translate(["boat"])
        runner.gate.set()
        await first


async def test_a_stopped_engine_serves_nobody() -> None:
    async with translating() as bench:
        bench.engine.stop()
        with pytest.raises(NotServingError, match="the engine has stopped"):
            await bench.translator.translate(["kite"])


# --- embeddings


async def test_the_mean_counts_the_text_s_own_tokens_alone() -> None:
    long = text_of(MAX_SOURCE_TOKENS)
    async with translating() as bench:
        alone = await bench.translator.embed(["kite"], normalize=False)
        among = await bench.translator.embed([long, "kite", long], normalize=False)
    expected = [(token_of("kite") + END) / 2, 0.5, 1.0]
    assert alone.embeddings[0].values.tolist() == expected
    assert among.embeddings[1].values.tolist() == expected
    assert among.dimension == 3
    assert [each.source_tokens for each in among.embeddings] == [24, 2, 24]


async def test_vectors_have_length_1_unless_told_otherwise() -> None:
    async with translating() as bench:
        result = await bench.translator.embed(["kite", "red boat"])
    for embedding in result.embeddings:
        assert np.linalg.norm(embedding.values) == pytest.approx(1, abs=1e-6)


async def test_a_blank_text_is_embedded_as_its_end_token() -> None:
    async with translating() as bench:
        result = await bench.translator.embed(["", "  "], normalize=False)
    assert [each.values.tolist() for each in result.embeddings] == [[END, 0, 1]] * 2
    assert [each.source_tokens for each in result.embeddings] == [1, 1]


async def test_without_pooling_each_token_has_its_vector_and_its_bytes() -> None:
    async with translating() as bench:
        result = await bench.translator.embed(["red kite"], pooling=Pooling.NONE, normalize=False)
    (embedding,) = result.embeddings
    red, kite = token_of("red"), token_of("kite")
    assert embedding.values.tolist() == [[red, 0, 1], [kite, 1, 1], [END, 2, 1]]
    assert [token.id for token in embedding.tokens] == [red, kite, END]
    assert [(token.start_byte, token.end_byte) for token in embedding.tokens] == [(0, 3), (3, 8), (8, 8)]


async def test_equal_vectors_of_different_texts_are_flagged() -> None:
    full = text_of(MAX_SOURCE_TOKENS)
    async with translating() as bench:
        with pytest.raises(TooLongError):
            await bench.translator.embed([full + " red"])
        result = await bench.translator.embed([full, full + " red", full + " boat"], truncate=True)
    assert [each.source_truncated for each in result.embeddings] == [False, True, True]
    assert [each.source_tokens for each in result.embeddings] == [MAX_SOURCE_TOKENS] * 3
    assert len({tuple(each.values.tolist()) for each in result.embeddings}) == 1


async def test_a_model_that_only_embeds_says_so_when_asked_to_translate() -> None:
    async with translating(what=encoder_manifest()) as bench:
        with pytest.raises(InvalidRequestError, match="'fake' has no decoder: it only embeds") as caught:
            await bench.translator.translate(["kite"])
        assert len((await bench.translator.embed(["kite"])).embeddings) == 1
    assert caught.value.field == "model"


async def test_pooling_and_length_are_the_checkpoint_s_unless_the_caller_wants_others() -> None:
    kite = token_of("kite")
    async with translating(what=encoder_manifest(EmbeddingRules(pooling="cls", normalize=False))) as bench:
        (usual,) = (await bench.translator.embed(["kite"])).embeddings
        (other,) = (await bench.translator.embed(["kite"], pooling=Pooling.MAX, normalize=True)).embeddings
    assert usual.values.tolist() == [kite, 0, 1]
    assert np.linalg.norm(other.values) == pytest.approx(1, abs=1e-6)
    assert other.values[1] / other.values[2] == pytest.approx(1)


async def test_states_that_are_not_finite_are_no_embedding() -> None:
    async with translating(FakeRunner(poison=(token_of("boat"),))) as bench:
        with pytest.raises(ModelFailedError, match=r"texts\[1\]: the encoder's states are not finite"):
            await bench.translator.embed(["kite", "boat"])


async def test_an_answer_too_large_to_send_is_refused_before_it_is_computed() -> None:
    async with translating(calls=CallLimits(texts=1000, answer_bytes=10 * 3 * 4)) as bench:
        assert len((await bench.translator.embed(["kite"] * 10)).embeddings) == 10
        with pytest.raises(InvalidRequestError, match="would be answered by 132 bytes of vectors, the limit is 120"):
            await bench.translator.embed(["kite"] * 11)
        with pytest.raises(InvalidRequestError, match="texts would be answered by 144 bytes"):
            await bench.translator.embed([text_of(12)], pooling=Pooling.NONE)


async def test_characters_are_counted_first() -> None:
    async with translating() as bench:
        with pytest.raises(TooLongError, match=f"has {MAX_CHARACTERS + 1} characters, the limit is {MAX_CHARACTERS}"):
            await bench.translator.translate(["." * (MAX_CHARACTERS + 1)])
