"""What a graph's file may hold, checked before a runtime sees it; the onnx package is not needed for that.

A bundle is data: its graphs compute with standard operators of one version, and read nothing but the bundle's own
weights. ONNX Runtime would run operators of its makers' own too, and look for weights wherever a graph says that they
lie. What stands here is a strict subset of what it takes.

The file is parsed by protobuf with the part of ONNX's schema below, so that it is understood as the runtime does.
"""

from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from dragoman.bundle.graphs import OPSET

MAX_BYTES = 16 * 2**20
"""Of a graph without its weights. Those of a model of 24 layers have a hundredth of it."""

MAX_DIGITS = 18
"""Of a place within a file: more would not fit into 64 bits."""

SCHEMA = {
    "Model": {
        "graph": (7, "Graph"),
        "opset_import": (8, "*Opset"),
        "training_info": (20, "*Any"),
        "functions": (25, "*Any"),
    },
    "Opset": {"domain": (1, "bytes"), "version": (2, "int64")},
    "Graph": {"node": (1, "*Node"), "initializer": (5, "*Tensor"), "sparse_initializer": (15, "*Any")},
    "Node": {"op_type": (4, "bytes"), "attribute": (5, "*Attribute"), "domain": (7, "bytes")},
    "Attribute": {
        "t": (5, "Tensor"),
        "g": (6, "Graph"),
        "tensors": (10, "*Tensor"),
        "graphs": (11, "*Graph"),
        "ref_attr_name": (21, "bytes"),
        "sparse_tensor": (22, "Any"),
        "sparse_tensors": (23, "*Any"),
    },
    "Tensor": {
        "dims": (1, "*int64"),
        "data_type": (2, "int32"),
        "name": (8, "bytes"),
        "external_data": (13, "*Entry"),
        "data_location": (14, "int32"),
    },
    "Entry": {"key": (1, "bytes"), "value": (2, "bytes")},
    "Any": {},
}
"""Fields of onnx.proto by number and type, those that are of concern here; a star marks those that may be several.

Text is bytes here: what it holds is never shown but quoted.
"""

ITEM_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""Bytes of a number, by onnx.proto's number of its type; of no others are weights made."""


def check_graph(path: Path, weights: Path) -> None:
    """Raise ValueError that says what in the graph at `path` is not allowed, or lies outside the file of weights."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"has {size} bytes, may have {MAX_BYTES}")
    model = _message("Model")()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError("not a whole ONNX graph") from error
    opsets = [(each.domain, each.version) for each in model.opset_import]
    if opsets != [(b"", OPSET)]:
        asked = ", ".join(f"{_quoted(domain)} {version}" for domain, version in opsets) or "none"
        raise ValueError(f"must ask for the standard operators of version {OPSET} alone, asks for {asked}")
    for name in ("functions", "training_info"):
        if getattr(model, name):
            raise ValueError(f"holds {name}, which no bundle has")
    held = weights.stat().st_size if weights.is_file() else 0
    for graph in _graphs(model.graph):
        _check_nodes(graph)
        for tensor in _tensors(graph):
            _check_tensor(tensor, size, weights.name, held)


@cache
def _message(name: str) -> Any:
    """The class of one of the messages in SCHEMA."""
    file = descriptor_pb2.FileDescriptorProto(name="dragoman/graph_files.proto", package="onnx", syntax="proto2")
    for message, fields in SCHEMA.items():
        made = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            made.field.append(_field(field, number, kind))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"onnx.{name}"))


def _field(name: str, number: int, kind: str) -> descriptor_pb2.FieldDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    scalars = {"bytes": field.TYPE_BYTES, "int32": field.TYPE_INT32, "int64": field.TYPE_INT64}
    if kind in scalars:
        field.type = scalars[kind]
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".onnx.{kind}"
    return field


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph, and all within its nodes; protobuf has bounded how deep they lie."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            inner = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            for each in inner:
                yield from _graphs(each)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t


def _check_nodes(graph: Any) -> None:
    if graph.sparse_initializer:
        raise ValueError("holds sparse tensors, which no bundle has")
    for node in graph.node:
        if node.domain:
            operator, domain = _quoted(node.op_type), _quoted(node.domain)
            raise ValueError(f"operator {operator} is of domain {domain}; only standard ones are run")
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ValueError("holds sparse tensors, which no bundle has")
            if attribute.ref_attr_name:
                raise ValueError(f"operator {_quoted(node.op_type)} refers to a function, which no bundle has")


def _check_tensor(tensor: Any, graph_bytes: int, weights: str, weights_bytes: int) -> None:
    name = f"tensor {_quoted(tensor.name)}"
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"{name} has dimensions {list(tensor.dims)}")
    count = prod(tensor.dims)
    if not (tensor.data_location or tensor.external_data):
        # At least four bits each, in whatever field they are.
        if count > 2 * graph_bytes:
            raise ValueError(f"{name} has {count} numbers, more than the file can hold")
        return
    keys = [entry.key for entry in tensor.external_data]
    place = {entry.key: entry.value for entry in tensor.external_data}
    if place.get(b"location") != weights.encode():
        where = _quoted(place.get(b"location", b""))
        raise ValueError(f"{name} lies in {where}; weights lie in {weights} alone")
    if len(place) < len(keys) or not place.keys() <= {b"location", b"offset", b"length"}:
        raise ValueError(f"{name}: its place is told by {', '.join(map(_quoted, keys))}")
    if tensor.data_type not in ITEM_BYTES:
        raise ValueError(f"{name} is of type {tensor.data_type}, of which no weights are")
    size = count * ITEM_BYTES[tensor.data_type]
    offset = _number(place.get(b"offset", b"0"), name)
    length = _number(place.get(b"length", b"%d" % size), name)
    if length != size:
        raise ValueError(f"{name} takes {length} bytes, should take {size}")
    if offset + length > weights_bytes:
        raise ValueError(f"{name} lies at {offset} to {offset + length} in {weights}, which has {weights_bytes} bytes")


def _number(text: bytes, name: str) -> int:
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise ValueError(f"{name}: its place is given as {_quoted(text)}")
    return int(text)


def _quoted(text: bytes) -> str:
    """As far as it helps to know, without what would disturb a line of a log."""
    return repr(text[:60].decode("utf-8", "replace"))
