"""The two graphs of a bundle: the single table of their names, types and axes.

The exporter writes graphs by this table, the verifier checks them against it, and the engine binds tensors by it.
Lengths, not masks, mark the start of a row's padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from dragoman.bundle.precision import Precision
from dragoman.bundle.validation import Count, Layers

OPSET = 24
"""The version of the standard ONNX operators in the graphs."""

Axis = str | int
"""A name for an axis that varies between calls, a number for one that the model fixes."""

WIDTH_STEP = 8
"""Source widths and cache capacities are multiples of this, however short the texts.

At some other widths ONNX Runtime's attention on the CPU sums in another order (seen when a row of 7, 11, 15, ...
positions fills its width), and a text's scores would depend on the width that its batch-mates need.
"""

ENCODER_FILE = "encoder.onnx"
DECODER_FILE = "decoder.onnx"

MAX_WIDTH = 2**16
"""Upper bound of a state's width, and of all heads together: four times that of the largest existing models."""

Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Dimensions:
    """The sizes of the fixed axes of a model's graphs."""

    encoder_layers: Annotated[Layers, Field(ge=1)]
    decoder_layers: Layers
    """0 for an encoder alone, whose bundle has no decoder graph."""
    heads: Width
    head_width: Width
    d_model: Width
    target_vocabulary: Count

    def __post_init__(self) -> None:
        """Bound the fields together: they determine the size of the caches."""
        if self.heads * self.head_width > MAX_WIDTH:
            raise ValueError(f"heads × head_width must be at most {MAX_WIDTH}, is {self.heads} × {self.head_width}")


DType = Literal["int64", "float32", "float16", "bool"]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class GraphSpec:
    """Inputs and outputs of a graph, in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def padded_width(positions: int) -> int:
    """The smallest allowed width for `positions`."""
    return -(-positions // WIDTH_STEP) * WIDTH_STEP


def cross_key(layer: int) -> str:
    """The cross-attention keys of decoder layer `layer`: output of the encoder, input of the decoder."""
    return f"cross_key.{layer}"


def cross_value(layer: int) -> str:
    """The cross-attention values of decoder layer `layer`: output of the encoder, input of the decoder."""
    return f"cross_value.{layer}"


def self_key(layer: int) -> str:
    """The cached self-attention keys of decoder layer `layer`, as input of a step."""
    return f"self_key.{layer}"


def self_value(layer: int) -> str:
    """The cached self-attention values of decoder layer `layer`, as input of a step."""
    return f"self_value.{layer}"


def updated(name: str) -> str:
    """The output that returns the cache `name`; bound to the same memory, the cache is updated in place."""
    return f"{name}.out"


def held_dtype(precision: Precision) -> DType:
    """The type of keys and values, in self-attention and cross-attention; all other floats are float32."""
    return "float16" if precision == "float16" else "float32"


def encoder_spec(size: Dimensions, precision: Precision) -> GraphSpec:
    """The encoder, which also computes the cross-attention keys and values of every decoder layer.

    input_ids [batch, source] and source_lengths [batch] -> hidden [batch, source, model] and, per decoder layer,
    cross_key, cross_value [batch, heads, source, head]. Values beyond a row's length are meaningless.
    """
    held = held_dtype(precision)
    cross = ("batch", size.heads, "source", size.head_width)
    return GraphSpec(
        inputs=(
            TensorSpec("input_ids", "int64", ("batch", "source")),
            TensorSpec("source_lengths", "int64", ("batch",)),
        ),
        outputs=(
            TensorSpec("hidden", "float32", ("batch", "source", size.d_model)),
            *(
                TensorSpec(name(layer), held, cross)
                for layer in range(size.decoder_layers)
                for name in (cross_key, cross_value)
            ),
        ),
    )


def decoder_spec(size: Dimensions, precision: Precision, logits: bool) -> GraphSpec:
    """One step of the decoder for each row of the batch.

    `token` [batch, 1] is each row's last token and `position` [batch] the number of tokens before it. Its keys and
    values are written to the caches at that position, which must be below their capacity. Outputs the next token
    (greedy: the largest logit, the lowest id on a tie) and the caches; `logits` [batch, vocabulary] only in the copy
    for the proof. `log_prob` is the token's natural log-probability if `scored` is true. That takes a pass over the
    vocabulary, so otherwise `log_prob` is the bare logit, which is finite as well.
    """
    held = held_dtype(precision)
    cross = ("batch", size.heads, "source", size.head_width)
    cache = ("batch", size.heads, "capacity", size.head_width)
    layers = range(size.decoder_layers)
    caches = [name(layer) for layer in layers for name in (self_key, self_value)]
    return GraphSpec(
        inputs=(
            TensorSpec("token", "int64", ("batch", 1)),
            TensorSpec("position", "int64", ("batch",)),
            TensorSpec("source_lengths", "int64", ("batch",)),
            TensorSpec("scored", "bool", ()),
            *(TensorSpec(name(layer), held, cross) for layer in layers for name in (cross_key, cross_value)),
            *(TensorSpec(name, held, cache) for name in caches),
        ),
        outputs=(
            TensorSpec("next_token", "int64", ("batch", 1)),
            TensorSpec("log_prob", "float32", ("batch",)),
            *((TensorSpec("logits", "float32", ("batch", size.target_vocabulary)),) if logits else ()),
            *(TensorSpec(updated(name), held, cache) for name in caches),
        ),
    )


def shape_faults(spec: TensorSpec, dtype: str, axes: tuple[Axis | None, ...]) -> list[str]:
    """The differences in words between `spec` and a graph's tensor with `dtype` and `axes`; empty if there are none."""
    faults = []
    if dtype != spec.dtype:
        faults.append(f"{spec.name} is {dtype}, should be {spec.dtype}")
    if axes != spec.axes:
        faults.append(f"{spec.name} has axes {list(axes)}, should have {list(spec.axes)}")
    return faults


def bind_axes(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of `spec` with its named axes replaced by `sizes`."""
    return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes)
