"""8-bit weights in standard operators, exact at any batch.

A linear map keeps its weights as int8 with one scale per output channel, and quantizes each row of its input to uint8
with a scale per row. The product is summed in integers: it is exact, and a row's result cannot depend on the other
rows of the batch.

    step = max |x| / 127                          one per row
    q    = round(x / step) + 128                  uint8, zero point 128
    y    = (q - 128) · W · scale · step + bias    W int8 [in, out], scale [out]

A non-negative input needs no zero point, and has twice as many levels: step = max x / 255.

The modules compute the same in PyTorch, so that the quantized model is itself a reference for its export.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx.ops import symbolic

from dragoman.model.transformer import FeedForward, Transformer

LEVELS = 127
"""Steps on either side of zero."""

POSITIVE_LEVELS = 255
"""Steps above zero for a non-negative input."""

ZERO_POINT = 128

MIN_PEAK = 1e-10
"""Stands in for the peak of an all-zero row of weights, whose scale would be 0."""

Attribute = int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
"""The type of an ONNX node's attribute."""

Table = tuple[nn.Parameter, nn.Parameter]
"""Weights int8 [out, in], and their scale [out]; for an embedding, [V, D] and [V]."""


def quantize_rows(weight: Tensor) -> Table:
    """weight [out, in] -> the table whose weights times scale are nearest to it."""
    scale = weight.abs().amax(dim=1).clamp_min(MIN_PEAK) / LEVELS
    rounded = (weight / scale[:, None]).round().to(torch.int8)
    return nn.Parameter(rounded, requires_grad=False), nn.Parameter(scale, requires_grad=False)


class Int8Linear(nn.Module):
    """Replaces a `nn.Linear`; with `positive`, one whose input is never negative."""

    def __init__(self, table: "Table", bias: nn.Parameter | None, *, positive: bool = False) -> None:
        super().__init__()
        self.weight, self.scale = table
        self.bias = bias
        self.positive = positive

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, in] -> [B, T, out]."""
        if self.positive:
            step = x.amax(dim=-1, keepdim=True) * (1 / POSITIVE_LEVELS)
        else:
            step = x.abs().amax(dim=-1, keepdim=True) * (1 / LEVELS)
        y = multiply(x, step, self.weight, self.positive) * self.scale * step
        return y if self.bias is None else y + self.bias


def multiply(x: Tensor, step: Tensor, weight: Tensor, positive: bool) -> Tensor:
    """round(x / step), which is within the levels, times int8 weight [out, in], summed in integers -> float32.

    x [..., in], step [..., 1] -> [..., out]. Where `step` is 0 so is x, and any finite result will do.
    """
    if not torch.onnx.is_in_onnx_export():
        # If no sum can reach 2**24, float32 holds every partial sum exactly, in any order.
        largest = (POSITIVE_LEVELS if positive else LEVELS) * LEVELS * weight.shape[1]
        exact = torch.float32 if largest < 2**24 else torch.float64
        return ((x / step).nan_to_num(0.0).round().to(exact) @ weight.t().to(exact)).float()
    # One block per row, so that each row has its own scale.
    blocks: dict[str, Attribute] = {"axis": x.dim() - 1, "block_size": x.shape[-1]}
    shape = (*x.shape[:-1], weight.shape[0])
    if positive:
        quantized = symbolic("QuantizeLinear", (x, step), attrs=blocks, dtype=torch.uint8, shape=x.shape)
        product = symbolic("MatMulInteger", (quantized, weight.t()), dtype=torch.int32, shape=shape)
    else:
        zero_points = torch.full(step.shape, ZERO_POINT, dtype=torch.uint8)
        zero_point = torch.tensor(ZERO_POINT, dtype=torch.uint8)
        quantized = symbolic("QuantizeLinear", (x, step, zero_points), attrs=blocks, dtype=torch.uint8, shape=x.shape)
        product = symbolic("MatMulInteger", (quantized, weight.t(), zero_point), dtype=torch.int32, shape=shape)
    return product.float()


class Int8Embedding(nn.Module):
    """Replaces a `nn.Embedding`; it may share its table with an `Int8Linear`."""

    def __init__(self, table: "Table") -> None:
        super().__init__()
        self.weight, self.scale = table

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]."""
        rows = functional.embedding(ids, self.weight).float()
        return rows * functional.embedding(ids, self.scale[:, None])


def quantize(model: Transformer) -> Transformer:
    """A copy of the model with all its embeddings and linear maps in 8 bits; tied weights stay tied."""
    # The memo shares the parameters instead of copying them: `_replace` then replaces them.
    quantized = copy.deepcopy(model, {id(each): each for each in model.parameters()})
    _replace(quantized, {})
    return quantized


def _replace(module: nn.Module, tables: dict[Tensor, Table]) -> None:
    for name, child in list(module.named_children()):
        if not isinstance(child, nn.Linear | nn.Embedding):
            _replace(child, tables)
            continue
        if child.weight not in tables:
            tables[child.weight] = quantize_rows(child.weight.detach())
        setattr(module, name, _replacement(child, tables[child.weight], _after_relu(module, name)))


def _replacement(child: nn.Linear | nn.Embedding, table: Table, positive: bool) -> nn.Module:
    if isinstance(child, nn.Embedding):
        return Int8Embedding(table)
    return Int8Linear(table, child.bias, positive=positive)


def _after_relu(module: nn.Module, name: str) -> bool:
    if not isinstance(module, FeedForward) or module.gate is not None:
        return False
    return name == "outer" and module.activation is functional.relu
