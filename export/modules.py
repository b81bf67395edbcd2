"""The model as the two graphs see it: attention by lengths, and one decoder step with its cache passed in and out.

Layers and weights are the model's own. What differs is how attention is carried out: here by the standard ONNX
operators `Attention` (which takes each row's length, so that no mask is built) and `TensorScatter` (which updates a
cache in place where input and output share memory).

Letters: B batch, S source, C capacity of a cache, H heads, K head width, D model, V vocabulary.
"""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic

from dragoman.model.config import DecodingRules
from dragoman.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """ONNX `Attention`: query [B, H, T, K] over the first `lengths` [B] of key, value [B, H, S, K] -> [B, H, T, K]."""
    no_mask, no_past = None, (None, None)
    return symbolic(
        "Attention",
        (query, key, value, no_mask, *no_past, lengths),
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )


def scatter(cache: Tensor, update: Tensor, position: Tensor) -> Tensor:
    """ONNX `TensorScatter`: `update` [B, H, 1, K] put into cache [B, H, C, K] at `position` [B] -> the cache."""
    return symbolic(
        "TensorScatter",
        (cache, update, position),
        attrs={"axis": 2, "mode": "linear"},
        dtype=cache.dtype,
        shape=cache.shape,
        version=1,
    )


def attend_source(attention: MultiHeadAttention, source_lengths: Tensor, x: Tensor) -> Tensor:
    """Self-attention of the encoder: x [B, S, D] -> [B, S, D]."""
    query, key, value = attention.project(x, x)
    return attention.conclude(attend(query, key, value, source_lengths))


def attend_cross(
    attention: MultiHeadAttention, key: Tensor, value: Tensor, source_lengths: Tensor, x: Tensor
) -> Tensor:
    """Cross-attention to keys and values [B, H, S, K] that the encoder graph made: x [B, 1, D] -> [B, 1, D]."""
    query = attention.split(attention.query(x))
    return attention.conclude(attend(query, key, value, source_lengths))


class CachedAttention:
    """Self-attention of one step over what is cached, remembering the caches that it carries on."""

    def __init__(self, attention: MultiHeadAttention, key: Tensor, value: Tensor, position: Tensor) -> None:
        self.attention = attention
        self.caches = (key, value)
        self.position = position

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, 1, D] -> [B, 1, D]."""
        query, key, value = self.attention.project(x, x)
        key, value = (scatter(*pair, self.position) for pair in zip(self.caches, (key, value), strict=True))
        self.caches = (key, value)
        return self.attention.conclude(attend(query, key, value, self.position + 1))


class EncoderGraph(nn.Module):
    """The encoder, with each decoder layer's cross keys and values of the source."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """As `export.graphs.encoder_spec` says."""
        x = self.model.source_embedding(input_ids)
        for module in self.model.encoder:
            layer = cast(EncoderLayer, module)
            x = layer(x, partial(attend_source, layer.self_attention, source_lengths))
        hidden = self.model.encoder_norm(x)
        outputs = [hidden]
        for module in self.model.decoder:
            cross = cast(DecoderLayer, module).cross_attention
            outputs += [cross.split(cross.key(hidden)), cross.split(cross.value(hidden))]
        return tuple(outputs)


class DecoderGraph(nn.Module):
    """One decoder step for each row, with the greedy choice made inside."""

    suppressed: Tensor

    def __init__(self, model: Transformer, rules: DecodingRules, logits: bool) -> None:
        super().__init__()
        self.model = model
        self.logits = logits
        suppressed = torch.zeros(model.config.target_vocabulary)
        suppressed[list(rules.suppressed_ids)] = -torch.inf
        self.register_buffer("suppressed", suppressed)

    def forward(
        self, token: Tensor, position: Tensor, source_lengths: Tensor, cross: list[Tensor], caches: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """As `export.graphs.decoder_spec` says; `cross` and `caches` hold a key and a value for each layer in turn."""
        x = self.model.target_embedding(token, position)
        carried: list[Tensor] = []
        for index, module in enumerate(self.model.decoder):
            layer = cast(DecoderLayer, module)
            cached = CachedAttention(layer.self_attention, caches[2 * index], caches[2 * index + 1], position)
            key, value = cross[2 * index], cross[2 * index + 1]
            x = layer(x, cached, partial(attend_cross, layer.cross_attention, key, value, source_lengths))
            carried += cached.caches
        logits = self.model.projection(self.model.decoder_norm(x)[:, 0]) + self.suppressed
        next_token = logits.argmax(dim=-1, keepdim=True)
        log_prob = logits.log_softmax(dim=-1).gather(1, next_token)[:, 0]
        return (next_token, log_prob, *((logits,) if self.logits else ()), *carried)
