"""The model as the two graphs see it: attention by lengths, and one decoder step with its cache passed in and out.

Layers and weights are the model's own. What differs is how attention is carried out: here by the standard ONNX
operators `Attention` (which takes each row's length, so that no mask is built) and `TensorScatter` (which updates a
cache in place where input and output share memory).

Letters: B batch, S source, C capacity of a cache, H heads, K head width, D model, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic

from dragoman.export.half import HalfLinear, WideLinear, join_halves
from dragoman.export.int8 import Int8Linear
from dragoman.model.config import DecodingRules
from dragoman.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer

LinearMap = nn.Linear | Int8Linear | HalfLinear | WideLinear

FLOAT = 1
"""ONNX's number for float32."""


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """ONNX `Attention`: query [B, H, T, K] over the first `lengths` [B] of key, value [B, H, S, K] -> [B, H, T, K]."""
    no_mask, no_past = None, (None, None)
    return symbolic(
        "Attention",
        (query, key, value, no_mask, *no_past, lengths),
        attrs={"softmax_precision": FLOAT} if query.dtype == torch.float16 else {},
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


def join(maps: Sequence[LinearMap]) -> LinearMap:
    """One linear map that gives what `maps` give, side by side: one product in place of several."""
    if isinstance(maps[0], HalfLinear):
        return join_halves([cast(HalfLinear, each) for each in maps])
    weight = fixed(torch.cat([each.weight for each in maps]))
    bias = fixed(torch.cat([cast(Tensor, each.bias) for each in maps]))
    if isinstance(maps[0], Int8Linear):
        return Int8Linear((weight, fixed(torch.cat([cast(Int8Linear, each).scale for each in maps]))), bias)
    return linear(weight, bias)


def add_bias(found: LinearMap, more: Tensor) -> LinearMap:
    """The same map, weights shared, with `more` [out] added to its bias."""
    bias = fixed(more if found.bias is None else found.bias + more)
    if isinstance(found, Int8Linear):
        return Int8Linear((found.weight, found.scale), bias)
    if isinstance(found, WideLinear):
        return WideLinear((found.weight, found.exponent), bias)
    return linear(cast(nn.Parameter, found.weight), bias)


def fixed(tensor: Tensor) -> nn.Parameter:
    """A parameter that nothing trains."""
    return nn.Parameter(tensor, requires_grad=False)


def linear(weight: nn.Parameter, bias: nn.Parameter) -> nn.Linear:
    """A `nn.Linear` over these very parameters."""
    made = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    made.weight, made.bias = weight, bias
    return made


class SourceAttention(nn.Module):
    """Self-attention of the encoder."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention
        self.joint = join([attention.query, attention.key, attention.value])

    def forward(self, x: Tensor, source_lengths: Tensor) -> Tensor:
        """x [B, S, D] -> [B, S, D]."""
        heads = self.joint(x).unflatten(-1, (3 * self.attention.heads, -1)).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        return self.attention.conclude(attend(query, key, value, source_lengths))


class CachedAttention(nn.Module):
    """Self-attention of one step over what is cached."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention
        self.joint = join([attention.query, attention.key, attention.value])

    def forward(self, x: Tensor, caches: list[Tensor], position: Tensor) -> Tensor:
        """x [B, 1, D] -> [B, 1, D]; in `caches`, key and value [B, H, C, K] are replaced by those carried on."""
        query, key, value = step_heads(self.joint(x), 3 * self.attention.heads).chunk(3, dim=1)
        caches[:] = [scatter(caches[0], key, position), scatter(caches[1], value, position)]
        return conclude_step(self.attention, attend(query, caches[0], caches[1], position + 1))


def attend_cross(
    attention: MultiHeadAttention, key: Tensor, value: Tensor, source_lengths: Tensor, x: Tensor
) -> Tensor:
    """Cross-attention to keys and values [B, H, S, K] that the encoder graph made: x [B, 1, D] -> [B, 1, D]."""
    query = step_heads(attention.query(x), attention.heads)
    return conclude_step(attention, attend(query, key, value, source_lengths))


def step_heads(x: Tensor, heads: int) -> Tensor:
    """x [B, 1, H·K] -> [B, H, 1, K]; with a single position there is nothing to transpose."""
    return x.reshape(-1, heads, 1, x.shape[-1] // heads)


def conclude_step(attention: MultiHeadAttention, heads: Tensor) -> Tensor:
    """What the heads found at one position [B, H, 1, K] -> [B, 1, D]."""
    return cast(Tensor, attention.output(heads.reshape(-1, 1, heads.shape[1] * heads.shape[3])))


class EncoderGraph(nn.Module):
    """The encoder, with each decoder layer's cross keys and values of the source."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        layers = [cast(EncoderLayer, layer) for layer in model.encoder]
        self.attentions = nn.ModuleList(SourceAttention(layer.self_attention) for layer in layers)
        cross = [cast(DecoderLayer, layer).cross_attention for layer in model.decoder]
        self.cross = join([each for attention in cross for each in (attention.key, attention.value)])

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """As `export.graphs.encoder_spec` says."""
        x = self.model.source_embedding(input_ids)
        for layer, attention in zip(self.model.encoder, self.attentions, strict=True):
            x = layer(x, partial(attention, source_lengths=source_lengths))
        hidden = self.model.encoder_norm(x)
        config = self.model.config
        cross = self.cross(hidden).unflatten(-1, (-1, config.head_width)).transpose(1, 2)
        return (hidden, *cross.split(config.heads, dim=1))


class DecoderGraph(nn.Module):
    """One decoder step for each row, with the greedy choice made inside."""

    def __init__(self, model: Transformer, rules: DecodingRules, logits: bool) -> None:
        super().__init__()
        self.model = model
        self.logits = logits
        layers = [cast(DecoderLayer, layer) for layer in model.decoder]
        self.attentions = nn.ModuleList(CachedAttention(layer.self_attention) for layer in layers)
        suppressed = torch.zeros(model.config.target_vocabulary)
        suppressed[list(rules.suppressed_ids)] = -torch.inf
        self.projection = add_bias(model.projection, suppressed)

    def forward(
        self, token: Tensor, position: Tensor, source_lengths: Tensor, cross: list[Tensor], caches: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """As `export.graphs.decoder_spec` says; `cross` and `caches` hold a key and a value for each layer in turn."""
        x = self.model.target_embedding(token, position)
        carried: list[Tensor] = []
        for index, (layer, attention) in enumerate(zip(self.model.decoder, self.attentions, strict=True)):
            key, value = cross[2 * index : 2 * index + 2]
            held = caches[2 * index : 2 * index + 2]
            attend_self = partial(attention, caches=held, position=position)
            cross_attention = cast(DecoderLayer, layer).cross_attention
            x = layer(x, attend_self, partial(attend_cross, cross_attention, key, value, source_lengths))
            carried += held
        logits = self.projection(self.model.decoder_norm(x)[:, 0])
        next_token = logits.argmax(dim=-1, keepdim=True)
        log_prob = logits.log_softmax(dim=-1).gather(1, next_token)[:, 0]
        return (next_token, log_prob, *((logits,) if self.logits else ()), *carried)
