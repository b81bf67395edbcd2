"""From a model to encoder.onnx, decoder.onnx and weights.bin."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR, getLogger
from pathlib import Path
from typing import BinaryIO, TypeVar

import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import Message
from torch import Tensor, nn
from torch.export import Dim

from dragoman.bundle.graphs import (
    DECODER_FILE,
    ENCODER_FILE,
    OPSET,
    Dimensions,
    GraphSpec,
    TensorSpec,
    bind_axes,
    decoder_spec,
    encoder_spec,
)
from dragoman.bundle.manifest import PRODUCT_FILE, WEIGHTS_FILE
from dragoman.bundle.precision import Precision
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.verify import PRODUCT_TERMS
from dragoman.export.graph_modules import DecoderGraph, EncoderGraph
from dragoman.model.config import TransformerConfig
from dragoman.model.transformer import Transformer

T = TypeVar("T")

TRACE_SIZES = {"batch": 2, "source": 7, "capacity": 5}
"""All above 1 and unequal: the tracer could take a size of 1, or two equal ones, for a constant of the model."""

INLINE_BYTES = 1024
"""Smaller tensors, such as the constants of a reshape, stay inside the graph."""

PAGE = 4096
"""Tensors of at least a page start on one, so that a runtime can map them instead of reading them."""


def dimensions_of(config: TransformerConfig) -> Dimensions:
    """The fixed axes of a model's graphs."""
    return Dimensions(
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        heads=config.heads,
        head_width=config.head_width,
        d_model=config.d_model,
        target_vocabulary=config.target_vocabulary,
    )


def write_graphs(
    folder: Path,
    model: Transformer,
    rules: DecodingRules,
    *,
    precision: Precision = "float32",
    trace_sizes: Mapping[str, int] = TRACE_SIZES,
) -> None:
    """Export the model into `folder`: the encoder, the decoder if there is one, and the weights file that they share.

    The model is already in `precision`.
    """
    size = dimensions_of(model.config)
    weights = WeightsFile(folder / WEIGHTS_FILE)
    graphs: list[tuple[str, nn.Module, GraphSpec, tuple[int, ...]]] = [
        (ENCODER_FILE, EncoderGraph(model), encoder_spec(size, precision), (1, 1))
    ]
    if size.decoder_layers:
        caches = 2 * size.decoder_layers
        decoder, parts = decoder_spec(size, precision, logits=False), (1, 1, 1, 1, caches, caches)
        graphs.append((DECODER_FILE, DecoderGraph(model, rules), decoder, parts))
    for name, module, spec, groups in graphs:
        program = _trace(module.eval(), spec, groups, trace_sizes)
        weights.move_out(program.model.graph.initializers.values())
        graph = program.model_proto
        _strip(graph)
        onnx.save_model(graph, folder / name)
        free_memory(set(module.parameters()) - set(model.parameters()))
    for name, *_ in graphs:
        onnx.checker.check_model(folder / name)


def free_memory(parameters: Iterable[nn.Parameter]) -> None:
    """Free the memory of parameters that are no longer needed: PyTorch's exporter keeps references to all of them."""
    for parameter in parameters:
        parameter.data = parameter.data.new_empty(0)


def show_logits(folder: Path) -> None:
    """Add an output to the decoder in `folder`: the logits from which it computes the log-probability."""
    decoder = onnx.load(folder / DECODER_FILE, load_external_data=False)
    nodes = (inner for node in decoder.graph.node for attribute in node.attribute for inner in attribute.g.node)
    (logits,) = (node.input[0] for node in nodes if node.op_type == "LogSoftmax")
    decoder.graph.node.append(onnx.helper.make_node("Identity", [logits], ["logits"]))
    axes = ("batch", "vocabulary")
    decoder.graph.output.append(onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, axes))
    onnx.save_model(decoder, folder / DECODER_FILE)


def write_product(folder: Path) -> None:
    """Write the graph that shows whether a processor sums 8-bit products exactly."""
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.INT8, [PRODUCT_TERMS, 16], [127] * (PRODUCT_TERMS * 16))
    zero_point = onnx.helper.make_tensor("zero_point", onnx.TensorProto.UINT8, [], [128])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["x", "w", "zero_point"], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["rows", PRODUCT_TERMS])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, ["rows", 16])],
        [weight, zero_point],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save_model(model, folder / PRODUCT_FILE)


def _trace(
    module: nn.Module, spec: GraphSpec, groups: tuple[int, ...], sizes: Mapping[str, int]
) -> torch.onnx.ONNXProgram:
    """Export one module; `groups` holds the number of inputs in each argument, which is a list for more than one."""
    axes = {name: Dim(name) for tensor in spec.inputs for name in tensor.axes if isinstance(name, str)}
    examples = [_example(tensor, sizes) for tensor in spec.inputs]
    shapes = [{i: axes[name] for i, name in enumerate(tensor.axes) if isinstance(name, str)} for tensor in spec.inputs]
    with _quiet():
        program = torch.onnx.export(
            module,
            tuple(_grouped(examples, groups)),
            dynamo=True,
            opset_version=OPSET,
            input_names=[tensor.name for tensor in spec.inputs],
            output_names=[tensor.name for tensor in spec.outputs],
            dynamic_shapes=tuple(_grouped(shapes, groups)),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program


def _example(tensor: TensorSpec, sizes: Mapping[str, int]) -> Tensor:
    shape = bind_axes(tensor, sizes)
    return torch.ones(shape, dtype=getattr(torch, tensor.dtype))


def _grouped(values: Iterable[T], groups: Iterable[int]) -> Iterator[T | list[T]]:
    rest = iter(values)
    for count in groups:
        yield next(rest) if count == 1 else [next(rest) for _ in range(count)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's remarks about its own internals; errors still pass."""
    log = getLogger("torch.onnx")
    level = log.level
    log.setLevel(ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _strip(graph: onnx.ModelProto) -> None:
    """Remove metadata for the exporter's authors: traces of Python code with its paths, inner shapes."""
    for holder in (graph, *_parts(graph.graph)):
        holder.ClearField("metadata_props")
        holder.ClearField("doc_string")
    del graph.functions[:]


def _parts(graph: onnx.GraphProto) -> Iterator[Message]:
    """The graph, its nodes, values and initializers, and the graphs in its nodes. Removes inner shapes."""
    del graph.value_info[:]
    yield from (graph, *graph.node, *graph.input, *graph.output, *graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _parts(attribute.g)


class WeightsFile:
    """External data of several graphs; a tensor is stored once, whatever its name in each graph.

    Tensors go to the file one by one, so that a large model never has a second copy in memory.
    """

    def __init__(self, path: Path) -> None:
        """Create an empty file at `path`."""
        self._path = path
        self._offsets: dict[str, int] = {}
        self._size = 0
        # An existing file is removed, not truncated: a bundle in service may have mapped it.
        path.unlink(missing_ok=True)
        path.touch()

    def move_out(self, values: Iterable[ir.Value]) -> None:
        """Move the data of each large constant to the file, and leave a reference in its place."""
        with self._path.open("ab") as file:
            for value in values:
                tensor = value.const_value
                if tensor is None or tensor.nbytes < INLINE_BYTES:
                    continue
                data = tensor.tobytes()
                value.const_value = ir.ExternalTensor(
                    self._path.name,
                    self._place(data, file),
                    len(data),
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=value.name or "",
                    base_dir=self._path.parent,
                )

    def _place(self, data: bytes, file: BinaryIO) -> int:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._offsets:
            alignment = PAGE if len(data) >= PAGE else 64
            padding = -self._size % alignment
            self._offsets[digest] = self._size + padding
            file.write(bytes(padding))
            file.write(data)
            self._size += padding + len(data)
        return self._offsets[digest]
