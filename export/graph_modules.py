"""The modules that become the two graphs: an encoder without padding, and a decoder step with explicit caches.

Layers and weights are the model's own; only the path to keys and values differs. The encoder computes on the real
tokens alone, concatenated, and unpacks them into padded rows only for attention. A step writes its keys and values into
a cache by the ONNX operator `TensorScatter`, in place if input and output share memory.

Attention is written as products and a softmax. ONNX has an operator for it, which takes lengths instead of a mask; on
the CPU it is up to twice as slow for the single query of a step.

Letters: B batch, S source, N real tokens of all sources, C capacity of a cache, H heads, K head width, D model,
V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx.ops import symbolic

from dragoman.bundle.rules import DecodingRules
from dragoman.export.float16 import HalfLinear, WideLinear, join_halves
from dragoman.export.int8 import Int8Linear
from dragoman.model.transformer import (
    MASKED,
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    RelativeBias,
    Transformer,
    lengths_to_visible,
)

LinearMap = nn.Linear | Int8Linear | HalfLinear | WideLinear

FLOAT = 1
"""ONNX's number for float32."""


@dataclass(frozen=True)
class Visible:
    """The positions that each row may attend to: the first `lengths` [B]."""

    lengths: Tensor
    mask: Tensor
    """Added to a row's scores, [B, 1, 1, S]; with a bias [B, H, T, S]."""
    bias: Tensor | None = None
    """The part of the mask that comes from relative positions, [B|1, H, T, S]."""

    def biased(self, bias: Tensor) -> "Visible":
        """The same positions with a bias [B|1, H, T, S]."""
        return Visible(self.lengths, self.mask + bias, bias)


def first(lengths: Tensor, width: int) -> Visible:
    """The first `lengths` [B] of `width` positions."""
    return Visible(lengths, torch.where(torch.arange(width) < lengths.reshape(-1, 1, 1, 1), 0.0, MASKED))


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """Scaled query [B, H, T, K] over key, value [B, H, S, K] -> [B, H, T, K].

    In float16, which is for CUDA, ONNX's `Attention` does this: it has its own kernels there, and scales by itself.
    """
    if query.dtype != torch.float16:
        return (query @ key.transpose(2, 3) + visible.mask).softmax(dim=-1) @ value
    bias, no_past = None if visible.bias is None else visible.bias.half(), (None, None)
    return symbolic(
        "Attention",
        (query, key, value, bias, *no_past, visible.lengths),
        attrs={"softmax_precision": FLOAT},
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )


def scatter(cache: Tensor, update: Tensor, position: Tensor) -> Tensor:
    """ONNX `TensorScatter`: writes `update` [B, H, 1, K] to cache [B, H, C, K] at `position` [B] -> the cache."""
    return symbolic(
        "TensorScatter",
        (cache, update, position),
        attrs={"axis": 2, "mode": "linear"},
        dtype=cache.dtype,
        shape=cache.shape,
        version=1,
    )


def scaled(query: LinearMap, head_width: int) -> LinearMap:
    """The map to queries with the scale of their products (§3.2.1) folded into its weights, where it costs nothing."""
    if isinstance(query, HalfLinear):
        return query  # `Attention` scales
    factor = head_width**-0.5
    bias = None if query.bias is None else fixed(query.bias * factor)
    if isinstance(query, Int8Linear):
        return Int8Linear((query.weight, fixed(query.scale * factor)), bias)
    return linear(fixed(query.weight * factor), bias)


def join(maps: Sequence[LinearMap]) -> LinearMap:
    """One linear map whose result is the concatenation of the results of `maps`: one product instead of several."""
    if isinstance(maps[0], HalfLinear):
        return join_halves([cast(HalfLinear, each) for each in maps])
    weight = fixed(torch.cat([each.weight for each in maps]))
    biases: list[Tensor] = [each.bias for each in maps if each.bias is not None]
    bias = fixed(torch.cat(biases)) if biases else None
    if isinstance(maps[0], Int8Linear):
        return Int8Linear((weight, fixed(torch.cat([cast(Int8Linear, each).scale for each in maps]))), bias)
    return linear(weight, bias)


def fixed(tensor: Tensor) -> nn.Parameter:
    """A parameter that is not trained."""
    return nn.Parameter(tensor, requires_grad=False)


def linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """A `nn.Linear` that holds these parameters, without a copy."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = weight
    if bias is not None:
        layer.bias = bias
    return layer


class DistanceBias(nn.Module):
    """A stack's `RelativeBias`, with its table computed once."""

    def __init__(self, bias: RelativeBias) -> None:
        super().__init__()
        self.rows = bias.rows
        self.table = fixed(bias.table().detach())  # [distances, H]

    def between(self, width: int) -> Tensor:
        """The bias for a query at every position: [1, H, width, width]."""
        at = torch.arange(width)
        return functional.embedding(self.rows(at[None], at[:, None]), self.table).permute(2, 0, 1)[None]

    def at(self, query: Tensor, width: int) -> Tensor:
        """The bias for one query per row, at position `query` [B]: [B, H, 1, width]."""
        rows = self.rows(torch.arange(width)[None], query[:, None])
        return functional.embedding(rows, self.table).transpose(1, 2)[:, :, None]


class Packing:
    """Maps a padded batch to its real tokens, concatenated, and back.

    Either direction copies whole heads, [K] at a time, so that heads come before positions without a transpose.
    """

    def __init__(self, lengths: Tensor, width: int, heads: int) -> None:
        """`lengths` [B] of rows padded to `width` positions."""
        self._width = width
        self._row, self._position = lengths_to_visible(lengths, width)[:, 0, 0].nonzero().unbind(1)  # [N] each
        starts = lengths.cumsum(0) - lengths
        # Padding repeats the row's own last token. Its weight is 0, but 0 times the NaN of another row would be NaN.
        within = torch.minimum(torch.arange(width), (lengths[:, None] - 1).clamp_min(0))
        self._tokens = torch.minimum(starts[:, None] + within, lengths.sum() - 1)  # [B, S], of the N
        self._heads = torch.arange(heads)

    def pack(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [1, N, D]."""
        return functional.embedding(self._row * self._width + self._position, x.flatten(0, 1))[None]

    def unpack(self, x: Tensor) -> Tensor:
        """[1, N, D] -> [B, S, D]."""
        return functional.embedding(self._tokens, x[0])

    def pack_heads(self, x: Tensor) -> Tensor:
        """[B, H, S, K] -> [1, N, H·K]."""
        index = (self._row[:, None] * len(self._heads) + self._heads) * self._width + self._position[:, None]  # [N, H]
        return functional.embedding(index, x.flatten(0, 2)).flatten(1)[None]

    def unpack_heads(self, x: Tensor, parts: int) -> list[Tensor]:
        """[1, N, P·H·K] -> P tensors [B, H, S, K]."""
        heads = len(self._heads)
        rows = x.unflatten(-1, (parts * heads, -1)).flatten(0, 2)  # [N·P·H, K]
        start = self._tokens[:, None] * (parts * heads) + self._heads[:, None]  # [B, H, S]
        return [functional.embedding(start + part * heads, rows) for part in range(parts)]


class SourceAttention(nn.Module):
    """Self-attention of the encoder."""

    def __init__(self, attention: MultiHeadAttention, head_width: int) -> None:
        super().__init__()
        self.attention = attention
        self.joint = join([scaled(attention.query, head_width), attention.key, attention.value])

    def forward(self, x: Tensor, packing: Packing, visible: Visible) -> Tensor:
        """x [1, N, D] -> [1, N, D]."""
        query, key, value = packing.unpack_heads(self.joint(x), 3)
        return cast(Tensor, self.attention.output(packing.pack_heads(attend(query, key, value, visible))))


class CachedAttention(nn.Module):
    """Self-attention of one step over the cached positions."""

    def __init__(self, attention: MultiHeadAttention, head_width: int) -> None:
        super().__init__()
        self.attention = attention
        self.joint = join([scaled(attention.query, head_width), attention.key, attention.value])

    def forward(self, x: Tensor, caches: list[Tensor], position: Tensor, visible: Visible) -> Tensor:
        """x [B, 1, D] -> [B, 1, D]; replaces key and value [B, H, C, K] in `caches` by the updated ones."""
        query, key, value = step_heads(self.joint(x), 3 * self.attention.heads).chunk(3, dim=1)
        caches[:] = [scatter(caches[0], key, position), scatter(caches[1], value, position)]
        return conclude_step(self.attention, attend(query, caches[0], caches[1], visible))


class CrossAttention(nn.Module):
    """Attention of one step to the keys and values from the encoder graph."""

    def __init__(self, attention: MultiHeadAttention, head_width: int) -> None:
        super().__init__()
        self.attention = attention
        self.query = scaled(attention.query, head_width)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
        """x [B, 1, D]; key, value [B, H, S, K] -> [B, 1, D]."""
        query = step_heads(self.query(x), self.attention.heads)
        return conclude_step(self.attention, attend(query, key, value, visible))


def step_heads(x: Tensor, heads: int) -> Tensor:
    """x [B, 1, H·K] -> [B, H, 1, K]; a single position needs no transpose."""
    return x.reshape(-1, heads, 1, x.shape[-1] // heads)


def conclude_step(attention: MultiHeadAttention, heads: Tensor) -> Tensor:
    """Results of the heads at one position [B, H, 1, K] -> [B, 1, D]."""
    return cast(Tensor, attention.output(heads.reshape(-1, 1, heads.shape[1] * heads.shape[3])))


class EncoderGraph(nn.Module):
    """The encoder, with the cross-attention keys and values of every decoder layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        width = model.config.head_width
        layers = [cast(EncoderLayer, layer) for layer in model.encoder]
        self.attentions = nn.ModuleList(SourceAttention(layer.self_attention, width) for layer in layers)
        cross = [cast(DecoderLayer, layer).cross_attention for layer in model.decoder]
        self.bias = None if model.encoder_bias is None else DistanceBias(model.encoder_bias)
        self.cross = join([each for attention in cross for each in (attention.key, attention.value)]) if cross else None

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """See `bundle.graphs.encoder_spec`."""
        config = self.model.config
        packing = Packing(source_lengths, input_ids.shape[1], config.heads)
        visible = first(source_lengths, input_ids.shape[1])
        if self.bias is not None:
            visible = visible.biased(self.bias.between(input_ids.shape[1]))
        x = packing.pack(self.model.source_embedding(input_ids))
        for layer, attention in zip(self.model.encoder, self.attentions, strict=True):
            x = layer(x, partial(attention, packing=packing, visible=visible))
        hidden = self.model.encoder_norm(x)
        if self.cross is None:
            return (packing.unpack(hidden),)
        return (packing.unpack(hidden), *packing.unpack_heads(self.cross(hidden), 2 * config.decoder_layers))


class DecoderGraph(nn.Module):
    """One decoder step for each row, including the greedy choice."""

    def __init__(self, model: Transformer, rules: DecodingRules) -> None:
        super().__init__()
        self.model = model
        width = model.config.head_width
        layers = [cast(DecoderLayer, layer) for layer in model.decoder]
        self.attentions = nn.ModuleList(CachedAttention(layer.self_attention, width) for layer in layers)
        self.cross_attentions = nn.ModuleList(CrossAttention(layer.cross_attention, width) for layer in layers)
        self.projection = model.projection
        self.suppressed = torch.tensor(rules.suppressed_ids, dtype=torch.int64)
        self.bias = None if model.decoder_bias is None else DistanceBias(model.decoder_bias)

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_lengths: Tensor,
        scored: Tensor,
        cross: list[Tensor],
        caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """See `bundle.graphs.decoder_spec`; `cross` and `caches` hold a key and a value for each layer in turn."""
        x = self.model.target_embedding(token, position)
        so_far = first(position + 1, caches[0].shape[2])
        if self.bias is not None:
            so_far = so_far.biased(self.bias.at(position, caches[0].shape[2]))
        source = first(source_lengths, cross[0].shape[2])
        carried: list[Tensor] = []
        for index, layer in enumerate(self.model.decoder):
            key, value = cross[2 * index : 2 * index + 2]
            held = caches[2 * index : 2 * index + 2]
            attend_self = partial(self.attentions[index], caches=held, position=position, visible=so_far)
            x = layer(x, attend_self, partial(self.cross_attentions[index], key=key, value=value, visible=source))
            carried += held
        logits = suppress(self.projection(self.model.decoder_norm(x)[:, 0]), self.suppressed)
        next_token = largest(logits)
        log_prob = torch.cond(scored, log_probability, only_logit, (logits, next_token, pick_one(logits, next_token)))
        return (next_token, log_prob, *carried)


def suppress(logits: Tensor, ids: Tensor) -> Tensor:
    """logits [B, V] with those of `ids` set to minus infinity: writes a few cells instead of reading all of them."""
    if not len(ids):
        return logits
    places = ids.expand(logits.shape[0], -1)
    return logits.scatter(1, places, torch.full_like(places, -torch.inf, dtype=logits.dtype))


def log_probability(logits: Tensor, token: Tensor, _logit: Tensor) -> Tensor:
    """logits [B, V], token [B, 1] -> natural log-probability [B]."""
    return logits.log_softmax(dim=-1).gather(1, token)[:, 0]


def only_logit(_logits: Tensor, _token: Tensor, logit: Tensor) -> Tensor:
    """Cheap stand-in for a log-probability that no row requested: the token's logit [B], finite if it would be."""
    return logit.clone()


def largest(logits: Tensor) -> Tensor:
    """logits [B, V] -> [B, 1], the index of each row's maximum, the lowest on a tie.

    ONNX Runtime computes a maximum many times faster than its index. The row is therefore split into parts; the index
    is searched only within the first part with the largest maximum.
    """
    width = part_width(logits.shape[1])
    parts = logits.unflatten(1, (-1, width))  # [B, P, W]
    part = parts.amax(dim=2).argmax(dim=1, keepdim=True)  # [B, 1]
    place = pick(parts, part).argmax(dim=1, keepdim=True)  # [B, 1], index within the part
    return cast(Tensor, part * width + place)


def pick(parts: Tensor, part: Tensor) -> Tensor:
    """The part of each row at index `part` (ONNX `GatherND`): parts [B, P, W], part [B, 1] -> [B, W].

    P is the number of parts of a row, W their width.
    """
    shape = (parts.shape[0], parts.shape[2])
    return symbolic("GatherND", (parts, part), attrs={"batch_dims": 1}, dtype=parts.dtype, shape=shape)


def pick_one(values: Tensor, place: Tensor) -> Tensor:
    """The value of each row at index `place` (ONNX `GatherND`): values [B, V], place [B, 1] -> [B]."""
    return symbolic("GatherND", (values, place), attrs={"batch_dims": 1}, dtype=values.dtype, shape=place.shape[:1])


def part_width(vocabulary: int) -> int:
    """The divisor of `vocabulary` nearest to its square root."""
    return min((w for w in range(1, vocabulary + 1) if vocabulary % w == 0), key=lambda w: abs(w * w - vocabulary))
