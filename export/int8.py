"""8-bit weights in standard operators, exact at any batch.

A linear map keeps its weights as int8 with one scale an output channel, and turns each row of its input into uint8
with a scale of that row's own. The product is summed in integers, so that it is exact, and a row's result cannot
depend on the rows beside it.

    step = max |x| / 127                          one a row
    q    = round(x / step) + 128                  uint8, zero point 128
    y    = (q - 128) · W · scale · step + bias    W int8 [in, out], scale [out]

In PyTorch the modules here compute the same, so that the quantized model is itself a reference for its export.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx.ops import symbolic

from dragoman.model.transformer import Transformer

LEVELS = 127
"""Steps on either side of zero."""

ZERO_POINT = 128

SMALLEST_PEAK = 1e-10
"""A row of nothing but zeros has no scale; this one gives zeros again."""


Table = tuple[nn.Parameter, nn.Parameter]
"""Weights int8 [out, in], and their scale [out]; of an embedding, [V, D] and [V]."""


def quantize_rows(weight: Tensor) -> Table:
    """weight [out, in] -> the table whose product is nearest to it."""
    scale = weight.abs().amax(dim=1).clamp_min(SMALLEST_PEAK) / LEVELS
    rounded = (weight / scale[:, None]).round().to(torch.int8)
    return nn.Parameter(rounded, requires_grad=False), nn.Parameter(scale, requires_grad=False)


class Int8Linear(nn.Module):
    """Stands in for a `nn.Linear`."""

    def __init__(self, table: "Table", bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.scale = table
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, in] -> [B, T, out]."""
        step = x.abs().amax(dim=-1, keepdim=True).clamp_min(SMALLEST_PEAK) * (1 / LEVELS)
        y = multiply(x / step, self.weight) * self.scale * step
        return y if self.bias is None else y + self.bias


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] within ±127, rounded, times int8 weight [out, in], summed in integers -> float32 [..., out]."""
    if not torch.onnx.is_in_onnx_export():
        # Where no sum can reach 2**24, float32 holds every one exactly, in whatever order it is made.
        exact = torch.float32 if LEVELS**2 * weight.shape[1] < 2**24 else torch.float64
        return (x.round().to(exact) @ weight.t().to(exact)).float()
    zero_point = torch.tensor(ZERO_POINT, dtype=torch.uint8)
    quantized = symbolic("QuantizeLinear", (x, torch.tensor(1.0), zero_point), dtype=torch.uint8, shape=x.shape)
    shape = (*x.shape[:-1], weight.shape[0])
    product = symbolic("MatMulInteger", (quantized, weight.t(), zero_point), dtype=torch.int32, shape=shape)
    return product.float()


class Int8Embedding(nn.Module):
    """Stands in for a `nn.Embedding`; its table may serve an `Int8Linear` as well."""

    def __init__(self, table: "Table") -> None:
        super().__init__()
        self.weight, self.scale = table

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]."""
        rows = functional.embedding(ids, self.weight).float()
        return rows * functional.embedding(ids, self.scale[:, None])


def quantize(model: Transformer) -> Transformer:
    """A copy of the model with all its embeddings and linear maps in 8 bits; what was tied stays tied."""
    quantized = copy.deepcopy(model)
    _replace(quantized, {})
    return quantized


def _replace(module: nn.Module, tables: dict[Tensor, Table]) -> None:
    for name, child in list(module.named_children()):
        if not isinstance(child, nn.Linear | nn.Embedding):
            _replace(child, tables)
            continue
        if child.weight not in tables:
            tables[child.weight] = quantize_rows(child.weight.detach())
        table = tables[child.weight]
        stand_in = Int8Embedding(table) if isinstance(child, nn.Embedding) else Int8Linear(table, child.bias)
        setattr(module, name, stand_in)
