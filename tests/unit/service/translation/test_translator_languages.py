"""Translator with a model of several languages: tags, prompts and language codes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman.client.values import Pooling
from dragoman.service.errors import UnknownLanguageError
from dragoman.service.telemetry.metrics import Metrics
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.options import EmbedOptions, TranslateOptions
from dragoman.service.translation.translator import Translator
from tests.support.fake_runner import END, START, FakeRunner
from tests.support.harness import MAX_SOURCE_TOKENS, manifest
from tests.support.letters import FR, described
from tests.unit.service.translation.bench import SIZE_LIMITS, translating

BILINGUAL = manifest(source_languages=("en", "fr"), target_languages=("en", "fr"))


@asynccontextmanager
async def multilingual(**description: Any) -> AsyncIterator[Translator]:
    """A model of two languages, whose outputs begin with the tag of the prompt, and whose tags have a text."""
    async with translating(FakeRunner(prompt_tokens=2), BILINGUAL) as bench:
        tokenizer = described(control_ids=(END,), unknown_id=None, **description)
        metrics = ModelMetrics(Metrics(CollectorRegistry()), "fake", BILINGUAL.target_languages)
        yield Translator(BILINGUAL, tokenizer, bench.engine, SIZE_LIMITS, metrics)


async def test_source_and_target_languages_become_tokens() -> None:
    async with multilingual(before=("source",), prompt=(START, "target")) as translator:
        for source, target, said in (
            ("en", "fr", "\xf0\xe0ab"),
            ("fr", "en", "\xe0\xf0ab"),
            ("fr", "fr", "\xf0\xf0ab"),
        ):
            result = await translator.translate(
                ["ab"], TranslateOptions(source_language=source, target_language=target)
            )
            assert result.texts == (said,)
            assert (result.translations[0].source_tokens, result.translations[0].output_tokens) == (4, 5)


async def test_calls_with_different_targets_share_a_batch() -> None:
    async with multilingual(before=("source",), prompt=(START, "target")) as translator:
        calls = [
            translator.translate([text] * 2, TranslateOptions(source_language="en", target_language=target))
            for text, target in (("ab", "fr"), ("cde", "en"), ("f", "fr"), ("gh", "en"))
        ]
        found = [result.texts for result in await asyncio.gather(*calls)]
    assert found == [("\xf0\xe0ab",) * 2, ("\xe0\xe0cde",) * 2, ("\xf0\xe0f",) * 2, ("\xe0\xe0gh",) * 2]


async def test_the_family_s_own_language_codes_are_accepted() -> None:
    async with multilingual(before=("source",), prompt=(START, "target")) as translator:
        result = await translator.translate(["ab"], TranslateOptions(source_language="eng", target_language="FRA"))
    assert result.texts == ("\xf0\xe0ab",)


@pytest.mark.parametrize(
    ("source", "target", "field"), [("en", "", "target"), ("", "fr", "source"), ("en", "xx", "target")]
)
async def test_one_of_several_languages_must_be_named_and_known(source: str, target: str, field: str) -> None:
    async with multilingual(before=("source",), prompt=(START, "target")) as translator:
        with pytest.raises(UnknownLanguageError, match="this model has en, fr") as caught:
            await translator.translate(["ab"], TranslateOptions(source_language=source, target_language=target))
    assert caught.value.field == f"{field}_language"


async def test_blank_texts_are_recognized_in_any_language() -> None:
    async with multilingual(before=("target",), after=(END, "source"), prompt=(START, "target")) as translator:
        result = await translator.translate(
            ["", "ab", " "], TranslateOptions(source_language="en", target_language="fr")
        )
    assert [translation.source_tokens for translation in result.translations] == [0, 5, 0]


async def test_a_cut_source_keeps_all_its_closing_tokens() -> None:
    async with multilingual(after=(END, "source"), prompt=(START, "target")) as translator:
        texts = ["x" * (MAX_SOURCE_TOKENS - 2), "x" * (MAX_SOURCE_TOKENS - 1)]
        result = await translator.embed(texts, EmbedOptions(source_language="fr", pooling=Pooling.NONE, truncate=True))
    ids = [[token.id for token in embedding.tokens] for embedding in result.embeddings]
    assert ids[0] == ids[1] == [*[ord("x")] * (MAX_SOURCE_TOKENS - 2), END, FR]
    assert [embedding.source_truncated for embedding in result.embeddings] == [False, True]


async def test_an_embedding_has_a_source_token_but_no_target_token() -> None:
    async with multilingual(before=("target", "source"), prompt=(START, "target")) as translator:
        result = await translator.embed(["ab"], EmbedOptions(source_language="fr", pooling=Pooling.NONE))
    assert [token.id for token in result.embeddings[0].tokens] == [FR, ord("a"), ord("b"), END]
