from dataclasses import replace

import numpy as np
import pytest

from dragoman.client.values import (
    Embedding,
    EmbedResult,
    FinishReason,
    ModelInfo,
    ModelMemory,
    Pooling,
    ProcessMemory,
    ServerInfo,
    ServerLimits,
    Timings,
    Token,
    TranslateResult,
    Translation,
)
from dragoman.client.wire import (
    FINISH_REASONS,
    POOLINGS,
    embed_response,
    embed_result,
    info_response,
    pooling_from,
    server_info,
    translate_response,
    translate_result,
)
from dragoman.v1 import translation_pb2 as pb

TIMINGS = Timings(0.5, 0.25, 0.125, 2.0)


def test_a_translation_survives_the_wire() -> None:
    result = TranslateResult(
        (
            Translation("déjà", FinishReason.LENGTH, True, 7, 9, -0.5),
            Translation("", FinishReason.END, False, 0, 0, None),
            Translation("x", FinishReason.REPETITION, False, 2, 2, 0.0),
        ),
        model="en-fr",
        model_version="0123456789ab",
        timings=TIMINGS,
        request_id="mine",
    )
    assert translate_result(pb.TranslateResponse.FromString(translate_response(result).SerializeToString())) == result
    assert result.texts == ("déjà", "", "x")


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        (np.array([0.5, -1.0, 2.0], np.float32), ()),
        (np.array([[0.5, -1.0, 2.0], [0, 0, 1]], np.float32), (Token(7, 0, 4), Token(2, 4, 4))),
    ],
)
def test_an_embedding_survives_the_wire(values: np.ndarray, tokens: tuple[Token, ...]) -> None:
    result = EmbedResult((Embedding(values, tokens, True, 2),), 3, "en-fr", "0123456789ab", TIMINGS, "mine")
    back = embed_result(pb.EmbedResponse.FromString(embed_response(result).SerializeToString()))
    (embedding,) = back.embeddings
    assert embedding.values.tolist() == values.tolist()
    assert embedding.values.dtype == np.float32
    assert (embedding.tokens, embedding.source_truncated, embedding.source_tokens) == (tokens, True, 2)
    assert (back.dimension, back.model, back.timings, back.request_id) == (3, "en-fr", TIMINGS, "mine")


def test_server_info_survives_the_wire() -> None:
    model = ModelInfo("en-fr", "0123", "transformer", ("en",), ("fr", "de"), "float32", "CPU", 24, 48, 200, 256, 2)
    model = replace(model, memory=ModelMemory(1, 2, 3, 4, 5, 6))
    limits = ServerLimits(1, 2, 3, 4, 5, 6, 7, 8, 9)
    info = ServerInfo((model,), "0.1.0", "1.32.0", 123456789, limits, "en", ProcessMemory(7, 8))
    assert server_info(pb.GetInfoResponse.FromString(info_response(info).SerializeToString())) == info


def test_every_value_of_the_proto_has_its_counterpart() -> None:
    assert {pb.FINISH_REASON_UNSPECIFIED, *FINISH_REASONS.values()} == set(pb.FinishReason.values())
    assert {pb.POOLING_UNSPECIFIED, *POOLINGS.values()} == set(pb.Pooling.values())
    assert set(FINISH_REASONS) == set(FinishReason) - {FinishReason.UNKNOWN}
    assert set(POOLINGS) == set(Pooling)


def test_a_finish_reason_of_a_newer_server_is_unknown() -> None:
    message = pb.TranslateResponse(translations=[pb.Translation(text="x")])
    message.translations[0].finish_reason = 99  # type: ignore[assignment]
    assert translate_result(message).translations[0].finish_reason is FinishReason.UNKNOWN


def test_pooling_is_optional_and_an_unknown_number_is_an_error() -> None:
    assert pooling_from(pb.POOLING_UNSPECIFIED) is None
    with pytest.raises(ValueError, match="is 99, which this server does not know"):
        pooling_from(99)
