"""The Transformer of *Attention Is All You Need* (Vaswani et al., 2017).

Letters in shapes: B batch, S source, T target, H heads, D model, K head width, V vocabulary.

Padding is on the right of each row, and lengths mark its start; no masks enter or leave the model. Inside, `visible`
is a boolean tensor, true for each position that may be attended to.

A layer takes its attention as functions. Whole sequences (training, the reference decoder) and one cached step (the
export) therefore share the same layer.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.config import Activation, PositionKind, TransformerConfig

Sublayer = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[Activation, Sublayer] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "swish": functional.silu,
}

MASKED = -1e4
"""Replaces a masked score: softmax makes it exactly 0, and float16 can represent it."""


def lengths_to_visible(lengths: Tensor, width: int) -> Tensor:
    """True at each position before a row's end: lengths [B] -> [B, 1, 1, width]."""
    return (torch.arange(width, device=lengths.device) < lengths[:, None])[:, None, None, :]


def causal_visible(width: int, device: torch.device) -> Tensor:
    """True for each target position and those before it. [1, 1, width, width]."""
    return torch.ones(width, width, dtype=torch.bool, device=device).tril()[None, None]


def sinusoid_table(rows: int, d_model: int, kind: PositionKind = "sinusoid") -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (§3.5). [rows, D] float32.

    In the two other kinds, sines and cosines are halves of a row; in "sinusoid_halves_even", 2i/D becomes i/(D/2 - 1).
    """
    half = d_model // 2
    even = kind == "sinusoid_halves_even"
    # M2M100 was trained with sines of float32 angles, whose error at position 1,000 is 1e-4.
    dtype = torch.float32 if even else torch.float64
    # On the CPU even for a model without memory for its weights: no checkpoint contains this table.
    position, index = (torch.arange(count, dtype=dtype, device="cpu") for count in (rows, half))
    if even:
        frequency = torch.exp(index * -(math.log(10000.0) / max(1, half - 1)))
    else:
        frequency = 10000.0 ** (-2 * index / d_model)
    angles = position[:, None] * frequency
    pair = (angles.sin(), angles.cos())
    return (torch.stack(pair, dim=-1).flatten(1) if kind == "sinusoid" else torch.cat(pair, dim=1)).float()


def normalisation(config: TransformerConfig) -> nn.Module:
    """A new normalisation over D."""
    kind = nn.RMSNorm if config.norm_kind == "rms" else nn.LayerNorm
    return kind(config.d_model, eps=config.norm_epsilon)


class Embedding(nn.Module):
    """Token embedding (scaled as in §3.4) plus position, normalised if the configuration says so."""

    positions: Tensor | None

    def __init__(self, config: TransformerConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.offset = config.position_offset
        self.dropout = nn.Dropout(config.dropout)
        rows = config.max_positions + config.position_offset
        if config.position_kind == "relative":
            self.register_buffer("positions", None)
        elif config.position_kind == "learned":
            self.positions = nn.Parameter(torch.randn(rows, config.d_model) * config.d_model**-0.5)
        else:
            table = sinusoid_table(rows, config.d_model, config.position_kind)
            self.register_buffer("positions", table, persistent=False)
        self.norm = normalisation(config) if config.embedding_norm else nn.Identity()

    def forward(self, ids: Tensor, position: Tensor | None = None) -> Tensor:
        """ids [B, T] -> [B, T, D]; `position` [B] is each row's first position. Default: 0."""
        if self.positions is None:
            return cast(Tensor, self.dropout(self.norm(self.tokens(ids) * self.scale)))
        steps = torch.arange(ids.shape[1], device=ids.device)[None]
        at = steps if position is None else steps + position[:, None]
        positions = functional.embedding(at + self.offset, self.positions)
        embedded = self.tokens(ids) * self.scale + positions
        return cast(Tensor, self.dropout(self.norm(embedded)))


class RelativeBias(nn.Module):
    """A bias on attention scores by distance, one number per head (T5, Raffel et al. 2020, §2.1).

    Distances fall into classes: each near distance has its own, farther ones share increasingly wide classes. All
    layers of a stack share the biases.
    """

    def __init__(self, config: TransformerConfig, *, both_sides: bool) -> None:
        """`both_sides`: positions after the query are visible too, and take half of the classes."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(config.relative_buckets, config.heads) * config.d_model**-0.5)
        self.farthest = config.relative_distance
        self.both_sides = both_sides

    def table(self) -> Tensor:
        """The bias of each distance from query to position: [2F + 1, H] for -F .. F, with F the farthest."""
        distance = torch.arange(-self.farthest, self.farthest + 1)
        return self.weight[self._classes(distance)]

    def rows(self, position: Tensor, query: Tensor) -> Tensor:
        """The row of `table` for each pair of position and query, by broadcasting."""
        return (position - query).clamp(-self.farthest, self.farthest) + self.farthest

    def forward(self, width: int) -> Tensor:
        """The bias for a query at every position: [1, H, width, width]."""
        at = torch.arange(width, device=self.weight.device)
        return functional.embedding(self.rows(at[None], at[:, None]), self.table()).permute(2, 0, 1)[None]

    def _classes(self, distance: Tensor) -> Tensor:
        count = len(self.weight)
        if self.both_sides:
            count //= 2
            first = torch.where(distance > 0, count, 0)
            distance = distance.abs()
        else:
            first = torch.zeros_like(distance)
            distance = (-distance).clamp_min(0)
        single = count // 2
        # In float32, as in training: at a border between classes, other arithmetic could choose the other class.
        octaves = torch.log(distance.clamp_min(1).float() / single) / math.log(self.farthest / single)
        wide = (single + (octaves * (count - single)).long()).clamp_max(count - 1)
        return first + torch.where(distance < single, distance, wide)


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention over several heads (§3.2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.heads * config.head_width
        self.query = nn.Linear(config.d_model, width, bias=config.biases)
        self.key = nn.Linear(config.d_model, width, bias=config.biases)
        self.value = nn.Linear(config.d_model, width, bias=config.biases)
        self.output = nn.Linear(width, config.d_model, bias=config.biases)

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H·K] -> [B, H, T, K]."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """[B, H, T, K] -> [B, T, H·K]."""
        return x.transpose(1, 2).flatten(2)

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x [B, T, D], keys and values of memory [B, S, D]: [B, H, T, K] and twice [B, H, S, K]."""
        return self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))

    def conclude(self, heads: Tensor) -> Tensor:
        """Results of the heads [B, H, T, K] -> [B, T, D]."""
        return cast(Tensor, self.output(self.merge(heads)))

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [B, T, D] attends to memory [B, S, D] where visible [B|1, 1, T|1, S] -> [B, T, D].

        `bias` [1, H, T, S] is added to the scores.
        """
        query, key, value = self.project(x, memory)
        # Scaling the query takes T·K products, scaling the scores would take T·S.
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)  # [B, H, T, S]
        if bias is not None:
            scores = scores + bias
        weights = scores.masked_fill(~visible, MASKED).softmax(dim=-1).to(value.dtype)
        return self.conclude(weights @ value)


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between, position by position (§3.3); a third may gate the activations."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.biases)
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.biases) if config.gated else None
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.biases)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        inner = self.activation(self.inner(x))
        return cast(Tensor, self.outer(inner if self.gate is None else inner * self.gate(x)))


class Residual(nn.Module):
    """A sub-layer inside its residual connection, with normalisation before it or after (§3.1)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = normalisation(config)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_order == "pre"

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        if self.norm_first:
            return cast(Tensor, x + self.dropout(sublayer(self.norm(x))))
        return cast(Tensor, self.norm(x + self.dropout(sublayer(x))))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_residual = Residual(config)
        self.feed_residual = Residual(config)

    def forward(self, x: Tensor, attend_self: Sublayer) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return cast(Tensor, self.feed_residual(self.self_residual(x, attend_self), self.feed_forward))


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the encoder's states, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_residual = Residual(config)
        self.cross_residual = Residual(config)
        self.feed_residual = Residual(config)

    def forward(self, x: Tensor, attend_self: Sublayer, attend_cross: Sublayer) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = self.self_residual(x, attend_self)
        x = self.cross_residual(x, attend_cross)
        return cast(Tensor, self.feed_residual(x, self.feed_forward))


class Transformer(nn.Module):
    """The encoder, the decoder and the projection to the vocabulary; with 0 decoder layers, the encoder alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        source_tokens = nn.Embedding(config.source_vocabulary, config.d_model)
        target_tokens = source_tokens
        if not config.shared_embedding:
            target_tokens = nn.Embedding(config.target_vocabulary, config.d_model)
        relative, decodes = config.position_kind == "relative", config.decoder_layers > 0
        self.source_embedding = Embedding(config, source_tokens)
        if decodes:
            self.target_embedding = Embedding(config, target_tokens)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm = normalisation(config) if config.final_norm else nn.Identity()
        self.decoder_norm = normalisation(config) if config.final_norm and decodes else nn.Identity()
        self.encoder_bias = RelativeBias(config, both_sides=True) if relative else None
        self.decoder_bias = RelativeBias(config, both_sides=False) if relative and decodes else None
        if decodes:
            self.projection = nn.Linear(config.d_model, config.target_vocabulary, bias=config.output_bias)
        self._initialize()
        if decodes and config.tied_output:
            self.projection.weight = target_tokens.weight

    def _initialize(self) -> None:
        """Xavier for the linear maps; embeddings have unit variance after scaling."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def encode(self, source: Tensor, source_lengths: Tensor) -> Tensor:
        """source [B, S] ids, source_lengths [B] -> states [B, S, D], meaningless beyond a row's length."""
        visible = lengths_to_visible(source_lengths, source.shape[1])
        bias = None if self.encoder_bias is None else self.encoder_bias(source.shape[1])
        x = self.source_embedding(source)
        for layer in self.encoder:
            attention = cast(EncoderLayer, layer).self_attention
            x = layer(x, lambda y, attend=attention: attend(y, y, visible, bias))
        return cast(Tensor, self.encoder_norm(x))

    def decode(self, target: Tensor, states: Tensor, source_lengths: Tensor) -> Tensor:
        """target [B, T] ids, beginning with the start token; states [B, S, D] -> hidden [B, T, D].

        Position t attends to target positions 0 to t, so rows may be padded on the right.
        """
        visible = lengths_to_visible(source_lengths, states.shape[1])
        causal = causal_visible(target.shape[1], target.device)
        bias = None if self.decoder_bias is None else self.decoder_bias(target.shape[1])
        x = self.target_embedding(target)
        for layer in self.decoder:
            block = cast(DecoderLayer, layer)
            x = layer(
                x,
                lambda y, attend=block.self_attention: attend(y, y, causal, bias),
                lambda y, attend=block.cross_attention: attend(y, states, visible),
            )
        return cast(Tensor, self.decoder_norm(x))

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """source [B, S], source_lengths [B], target [B, T] -> logits [B, T, V].

        Position t scores the token after target token t.
        """
        states = self.encode(source, source_lengths)
        return cast(Tensor, self.projection(self.decode(target, states, source_lengths)))
