"""float16 for CUDA: half the size, products in float16, and no value that can overflow.

The residual stream, layer normalisation, softmax, logits and everything after them are float32, so that a state may
grow as large as in float32. Weights, inputs of products and their results are float16:

    y = clamp(clamp(x) · W + bias)           input of the next product or attention (`HalfLinear`), float16
    y = clamp(clamp(x) · W / n) · n + bias   input of the residual stream or the logits (`WideLinear`), float32

A product that float16 cannot hold is infinite before the clamp, and the largest float16 after it; never NaN. In a
`WideLinear`, n is a power of two, 1 unless the weights are large: results far beyond float16's range then survive.

The modules compute the same in PyTorch, so that the float16 model is itself a reference for its export.
"""

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.transformer import FeedForward, MultiHeadAttention, Transformer

MAX_NUMBER = 65504.0
"""The largest finite float16."""

VALUE_LIMIT = MAX_NUMBER / 2
"""Attention weights, rounded to float16, may sum to slightly more than 1; the weighted values must not overflow."""

MAX_NORM = 16.0
"""The largest norm of a row of weights in a `WideLinear`; weights beyond are scaled down. Trained rows have 1 to 4.

The product of such a row and an input of norm 4,000 still fits.
"""

Table = tuple[nn.Parameter, int]
"""Weights float16 [out, in], and the exponent of the power of two by which they were divided."""


def score_limit(head_width: int) -> float:
    """The largest magnitude in a query and a key whose scaled product is still a finite float16."""
    return float(math.floor(math.sqrt(MAX_NUMBER / math.sqrt(head_width))))


def divide(weight: Tensor) -> Table:
    """Finite weight [out, in] -> its table; the exponent is 0 unless a row is very large."""
    norm = float(weight.double().norm(dim=1).max())
    exponent = max(0, math.ceil(math.log2(norm / MAX_NORM))) if norm else 0
    return nn.Parameter((weight * 2.0**-exponent).half(), requires_grad=False), exponent


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] of any float type times float16 weight [out, in] -> float16 [..., out], infinite on overflow.

    Summed in float32, and rounded once.
    """
    # ONNX Runtime on the CPU drops a rounding to float16 whose result goes straight into a product. The clamp between
    # the two preserves it, so that the graphs compute the same there as PyTorch does here.
    half = x if x.dtype == torch.float16 else x.half().clamp(-MAX_NUMBER, MAX_NUMBER)
    if torch.onnx.is_in_onnx_export():
        return functional.linear(half, weight, bias)
    return functional.linear(half.float(), weight.float(), None if bias is None else bias.float()).half()


class HalfLinear(nn.Module):
    """Replaces a `nn.Linear` whose result enters another product or attention."""

    def __init__(self, weight: Tensor, bias: Tensor | None, limits: Tensor) -> None:
        """weight [out, in], bias [out], and limits [out]: the largest magnitude of each result."""
        super().__init__()
        self.weight = nn.Parameter(weight.half(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.half(), requires_grad=False)
        self.register_buffer("limits", limits.half())

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, in] -> float16 [B, T, out]."""
        y = multiply(x, self.weight, self.bias)
        limits = self.get_buffer("limits")
        return y.clamp(-limits, limits)


def join_halves(maps: Sequence[HalfLinear]) -> HalfLinear:
    """One map whose result is the concatenation of the results of `maps`."""
    biases: list[Tensor] = [each.bias for each in maps if each.bias is not None]
    weight = torch.cat([each.weight for each in maps])
    limits = torch.cat([each.get_buffer("limits") for each in maps])
    return HalfLinear(weight, torch.cat(biases) if biases else None, limits)


class HalfAttention(MultiHeadAttention):
    """Replaces a `MultiHeadAttention`: float16 scores and weights, softmax in float32 between them.

    ONNX Runtime's `Attention` does the same on the CPU; on CUDA the scores are not rounded.
    """

    def __init__(self, attention: MultiHeadAttention, parts: Mapping[str, nn.Module]) -> None:
        """`parts` replace the linear maps of `attention`, by name."""
        nn.Module.__init__(self)
        self.heads = attention.heads
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `MultiHeadAttention.forward`."""
        query, key, value = (each.float() for each in self.project(x, memory))
        scores = ((query @ key.transpose(2, 3)) * query.shape[-1] ** -0.5).half()
        if bias is not None:
            scores = scores + bias.half()
        weights = scores.float().masked_fill(~visible, -torch.inf).softmax(dim=-1).half().float()
        return self.conclude((weights @ value).half())


class WideLinear(nn.Module):
    """Replaces a `nn.Linear` whose result enters the residual stream or the logits."""

    def __init__(self, table: Table, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.exponent = table
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> float32 [..., out]."""
        y = multiply(x, self.weight).clamp(-MAX_NUMBER, MAX_NUMBER).float()
        if self.exponent:
            y = y * 2.0**self.exponent
        return y if self.bias is None else y + self.bias


class HalfEmbedding(nn.Module):
    """Replaces a `nn.Embedding`; it may share its table with a `WideLinear`. Rows are scaled in float32."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.weight, self.exponent = table

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] -> float32 [B, T, D]."""
        return functional.embedding(ids, self.weight).float() * 2.0**self.exponent


def halve(model: Transformer) -> Transformer:
    """A copy of the model in float16; tied weights stay tied.

    Raises ValueError naming the weights that float16 cannot hold.
    """
    # The memo shares the parameters instead of copying them: `_replace` then replaces them.
    halved = copy.deepcopy(model, {id(each): each for each in model.parameters()})
    _replace(halved, "", {}, score_limit(model.config.head_width))
    return halved


def _replace(module: nn.Module, where: str, tables: dict[Tensor, Table], limit: float) -> None:
    for name, child in list(module.named_children()):
        path = f"{where}{name}"
        if isinstance(child, MultiHeadAttention):
            limits = {"query": limit, "key": limit, "value": VALUE_LIMIT}
            parts = {part: _narrow(child.get_submodule(part), f"{path}.{part}", limits[part]) for part in limits}
            module.add_module(
                name, HalfAttention(child, {**parts, "output": _wide(child.output, f"{path}.output", tables)})
            )
        elif isinstance(child, FeedForward):
            if child.gate is None:
                child.add_module("inner", _narrow(child.inner, f"{path}.inner", MAX_NUMBER))
            else:
                # Their product is in float32, and clamped only on entry to the next map.
                child.add_module("inner", _wide(child.inner, f"{path}.inner", tables))
                child.add_module("gate", _wide(child.gate, f"{path}.gate", tables))
            child.add_module("outer", _wide(child.outer, f"{path}.outer", tables))
        elif isinstance(child, nn.Linear):
            module.add_module(name, _wide(child, path, tables))
        elif isinstance(child, nn.Embedding):
            module.add_module(name, HalfEmbedding(_table(child.weight, path, tables)))
        else:
            _replace(child, f"{path}.", tables, limit)


def _narrow(found: nn.Module, path: str, limit: float) -> HalfLinear:
    parameters = {name: parameter.detach() for name, parameter in found.named_parameters()}
    for name, parameter in parameters.items():
        _check_finite(f"{path}.{name}", parameter.half(), parameter)
    weight = parameters["weight"]
    return HalfLinear(weight, parameters.get("bias"), weight.new_full((len(weight),), limit))


def _wide(found: nn.Linear, path: str, tables: dict[Tensor, Table]) -> WideLinear:
    return WideLinear(_table(found.weight, path, tables), found.bias)


def _table(weight: Tensor, path: str, tables: dict[Tensor, Table]) -> Table:
    if weight not in tables:
        _check_finite(f"{path}.weight", weight, weight)
        tables[weight] = divide(weight.detach())
    return tables[weight]


def _check_finite(path: str, tensor: Tensor, source: Tensor) -> None:
    if not tensor.isfinite().all():
        raise ValueError(f"{path}: must be finite in float16, reaches {float(source.abs().max()):.3g}")
