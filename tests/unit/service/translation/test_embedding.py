"""Translator.embed: pooling, normalization and limits of one model."""

import numpy as np
import pytest

from dragoman.bundle.rules import EmbeddingRules
from dragoman.client.values import Pooling
from dragoman.service.errors import InvalidRequestError, ModelFailedError, TooLongError
from dragoman.service.translation.options import EmbedOptions, TranslateOptions
from dragoman.service.translation.translator import CallSizeLimits
from tests.support.fake_runner import END, FakeRunner
from tests.support.harness import MAX_SOURCE_TOKENS, encoder_manifest, text_of, token_of
from tests.unit.service.translation.bench import translating


async def test_the_mean_ignores_padding() -> None:
    long = text_of(MAX_SOURCE_TOKENS)
    async with translating() as bench:
        alone = await bench.translator.embed(["kite"], EmbedOptions(normalize=False))
        among = await bench.translator.embed([long, "kite", long], EmbedOptions(normalize=False))
    expected = [(token_of("kite") + END) / 2, 0.5, 1.0]
    assert alone.embeddings[0].values.tolist() == expected
    assert among.embeddings[1].values.tolist() == expected
    assert among.dimension == 3
    assert [each.source_tokens for each in among.embeddings] == [24, 2, 24]


async def test_vectors_are_normalized_by_default() -> None:
    async with translating() as bench:
        result = await bench.translator.embed(["kite", "red boat"], EmbedOptions())
    for embedding in result.embeddings:
        assert np.linalg.norm(embedding.values) == pytest.approx(1, abs=1e-6)


async def test_a_blank_text_is_embedded_as_its_end_token() -> None:
    async with translating() as bench:
        result = await bench.translator.embed(["", "  "], EmbedOptions(normalize=False))
    assert [each.values.tolist() for each in result.embeddings] == [[END, 0, 1]] * 2
    assert [each.source_tokens for each in result.embeddings] == [1, 1]


async def test_without_pooling_each_token_has_vector_and_bytes() -> None:
    async with translating() as bench:
        result = await bench.translator.embed(["red kite"], EmbedOptions(pooling=Pooling.NONE, normalize=False))
    (embedding,) = result.embeddings
    red, kite = token_of("red"), token_of("kite")
    assert embedding.values.tolist() == [[red, 0, 1], [kite, 1, 1], [END, 2, 1]]
    assert [token.id for token in embedding.tokens] == [red, kite, END]
    assert [(token.start_byte, token.end_byte) for token in embedding.tokens] == [(0, 3), (3, 8), (8, 8)]


async def test_truncated_embeddings_are_flagged() -> None:
    full = text_of(MAX_SOURCE_TOKENS)
    async with translating() as bench:
        with pytest.raises(TooLongError):
            await bench.translator.embed([full + " red"], EmbedOptions())
        result = await bench.translator.embed([full, full + " red", full + " boat"], EmbedOptions(truncate=True))
    assert [each.source_truncated for each in result.embeddings] == [False, True, True]
    assert [each.source_tokens for each in result.embeddings] == [MAX_SOURCE_TOKENS] * 3
    assert len({tuple(each.values.tolist()) for each in result.embeddings}) == 1


async def test_a_model_that_only_embeds_refuses_to_translate() -> None:
    async with translating(what=encoder_manifest()) as bench:
        with pytest.raises(InvalidRequestError, match="'fake' has no decoder: it only embeds") as caught:
            await bench.translator.translate(["kite"], TranslateOptions())
        assert len((await bench.translator.embed(["kite"], EmbedOptions())).embeddings) == 1
    assert caught.value.field == "model"


async def test_the_checkpoint_s_pooling_can_be_overridden() -> None:
    kite = token_of("kite")
    async with translating(what=encoder_manifest(EmbeddingRules(pooling="cls", normalize=False))) as bench:
        (usual,) = (await bench.translator.embed(["kite"], EmbedOptions())).embeddings
        (other,) = (
            await bench.translator.embed(["kite"], EmbedOptions(pooling=Pooling.MAX, normalize=True))
        ).embeddings
    assert usual.values.tolist() == [kite, 0, 1]
    assert np.linalg.norm(other.values) == pytest.approx(1, abs=1e-6)
    assert other.values[1] / other.values[2] == pytest.approx(1)


async def test_states_that_are_not_finite_fail_the_call() -> None:
    async with translating(FakeRunner(poison=(token_of("boat"),))) as bench:
        with pytest.raises(ModelFailedError, match=r"texts\[1\]: the encoder's states are not finite"):
            await bench.translator.embed(["kite", "boat"], EmbedOptions())


async def test_an_oversized_answer_is_refused_before_the_engine() -> None:
    async with translating(limits=CallSizeLimits(texts=1000, answer_bytes=10 * 3 * 4)) as bench:
        assert len((await bench.translator.embed(["kite"] * 10, EmbedOptions())).embeddings) == 10
        with pytest.raises(InvalidRequestError, match="would produce 132 bytes of vectors, the limit is 120"):
            await bench.translator.embed(["kite"] * 11, EmbedOptions())
        with pytest.raises(InvalidRequestError, match="texts would produce 144 bytes"):
            await bench.translator.embed([text_of(12)], EmbedOptions(pooling=Pooling.NONE))
