"""CTranslate2 as a peer, with the same weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.speed.contenders import ROWS
from dragoman.bundle.precision import Precision
from dragoman.bundle.rules import DecodingRules
from dragoman.model.transformer import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Residual,
    Transformer,
)


class CTranslate2:
    """Greedy decoding by CTranslate2. See `Contender`."""

    def __init__(
        self, folder: Path, rules: DecodingRules, precision: Precision, threads: int, device: str = "cpu"
    ) -> None:
        self._translator = ctranslate2.Translator(
            str(folder), device=device, compute_type=precision, inter_threads=1, intra_threads=threads
        )
        # The end token is suppressed by each call's minimum length instead.
        self._suppressed = [[str(token)] for token in rules.suppressed_ids if token not in rules.end_ids]

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """See `Contender`."""
        return self._translate(sources, 0, steps, steps)

    def outputs(self, sources: Sequence[Sequence[int]], max_tokens: int, rows: int = ROWS) -> list[list[int]]:
        """See `Contender`. One call; CTranslate2 itself sorts by length."""
        return self._translate(sources, rows, 0, max_tokens)

    def _translate(
        self, sources: Sequence[Sequence[int]], rows: int, min_tokens: int, max_tokens: int
    ) -> list[list[int]]:
        results = self._translator.translate_batch(
            [[str(token) for token in source] for source in sources],
            beam_size=1,
            max_batch_size=rows,
            min_decoding_length=min_tokens,
            max_decoding_length=max_tokens,
            suppress_sequences=self._suppressed,
            return_end_token=True,
        )
        return [[int(token) for token in result.hypotheses[0]] for result in results]


def convert(model: Transformer, rules: DecodingRules, folder: Path) -> None:
    """Write the model in CTranslate2's format; its vocabulary is the token ids."""
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm_order == "pre",
        activation=Activation.RELU,
    )
    _embed(spec.encoder, spec.encoder.embeddings[0], model.source_embedding)
    _embed(spec.decoder, spec.decoder.embeddings, model.target_embedding)
    for layer, into in zip(model.encoder, spec.encoder.layer, strict=True):
        _encoder_layer(cast(EncoderLayer, layer), into)
    for layer, into in zip(model.decoder, spec.decoder.layer, strict=True):
        _decoder_layer(cast(DecoderLayer, layer), into)
    if config.final_norm:
        _norm(model.encoder_norm, spec.encoder.layer_norm)
        _norm(model.decoder_norm, spec.decoder.layer_norm)
    spec.decoder.projection.weight = _array(model.projection.weight)
    words = [str(token) for token in range(config.target_vocabulary)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = str(rules.start_id)
    spec.config.bos_token = str(rules.start_id)
    spec.config.eos_token = str(rules.end_ids[0])
    spec.config.unk_token = str(rules.pad_id)
    spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().numpy())


def _embed(stack: Any, into: Any, embedding: Embedding) -> None:
    into.weight = _array(embedding.tokens.weight)
    stack.position_encodings.encodings = _array(cast(Tensor, embedding.positions))
    stack.scale_embeddings = embedding.scale != 1.0


def _encoder_layer(layer: EncoderLayer, into: Any) -> None:
    _attend(layer.self_attention, layer.self_residual, into.self_attention, fused=3)
    _feed(layer.feed_forward, layer.feed_residual, into.ffn)


def _decoder_layer(layer: DecoderLayer, into: Any) -> None:
    _attend(layer.self_attention, layer.self_residual, into.self_attention, fused=3)
    _attend(layer.cross_attention, layer.cross_residual, into.attention, fused=2)
    _feed(layer.feed_forward, layer.feed_residual, into.ffn)


def _attend(attention: MultiHeadAttention, residual: Residual, into: Any, fused: int) -> None:
    """Copy an attention. CTranslate2 fuses query, key and value (`fused` is 3) or key and value (2) into one map."""
    maps = [attention.query, attention.key, attention.value]
    parts = [maps] if fused == len(maps) else [maps[:1], maps[1:]]
    for linear, part in zip(into.linear, [*parts, [attention.output]], strict=True):
        linear.weight = np.concatenate([_array(each.weight) for each in part])
        linear.bias = np.concatenate([_array(each.bias) for each in part])
    _norm(residual.norm, into.layer_norm)


def _feed(feed: FeedForward, residual: Residual, into: Any) -> None:
    for source, linear in ((feed.inner, into.linear_0), (feed.outer, into.linear_1)):
        linear.weight, linear.bias = _array(source.weight), _array(source.bias)
    _norm(residual.norm, into.layer_norm)


def _norm(source: nn.Module, into: Any) -> None:
    norm = cast(nn.LayerNorm, source)
    into.gamma, into.beta = _array(norm.weight), _array(norm.bias)
