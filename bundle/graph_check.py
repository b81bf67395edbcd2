"""Check of a graph's file before a runtime opens it; does not need the onnx package.

A bundle is data: its graphs compute with standard operators of one version, and read nothing but the bundle's own
weights. ONNX Runtime would also run its vendor's operators, and open weights at any path that a graph names. This check
allows a strict subset.

Protobuf parses the file by the part of ONNX's schema below, and so reads it as the runtime does.
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
"""The largest graph, without weights; the graphs of a model with 24 layers have a hundredth of this."""

MAX_DIGITS = 18
"""Digits of an offset or length within a file; more would not fit into 64 bits."""

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
"""The relevant fields of onnx.proto, by number and type; a star marks a repeated field.

Strings are parsed as bytes, and quoted wherever they are shown.
"""

ITEM_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""Bytes per number, by data type in onnx.proto; weights have no other type."""


def check_graph(path: Path, weights: Path) -> None:
    """Raise ValueError naming what the graph at `path` may not contain, or what is outside the file `weights`."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"has {size} bytes, may have {MAX_BYTES}")
    model = _message("Model")()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError("not a complete ONNX graph") from error
    opsets = [(each.domain, each.version) for each in model.opset_import]
    if opsets != [(b"", OPSET)]:
        imported = ", ".join(f"{_quoted(domain)} {version}" for domain, version in opsets) or "none"
        raise ValueError(f"must import only version {OPSET} of the standard operators, imports {imported}")
    for name in ("functions", "training_info"):
        if getattr(model, name):
            raise ValueError(f"contains {name}, which no bundle has")
    weights_bytes = weights.stat().st_size if weights.is_file() else 0
    for graph in _graphs(model.graph):
        _check_nodes(graph)
        for tensor in _tensors(graph):
            _check_tensor(tensor, size, weights.name, weights_bytes)


@cache
def _message(name: str) -> Any:
    """The class of a message in SCHEMA."""
    file = descriptor_pb2.FileDescriptorProto(name="dragoman/graph_check.proto", package="onnx", syntax="proto2")
    for message, fields in SCHEMA.items():
        descriptor = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            descriptor.field.append(_field(field, number, kind))
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
    """A graph, and the graphs in its nodes at any depth; protobuf bounds that depth while parsing."""
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
        raise ValueError("contains sparse tensors, which no bundle has")
    for node in graph.node:
        if node.domain:
            operator, domain = _quoted(node.op_type), _quoted(node.domain)
            raise ValueError(f"operator {operator} is of domain {domain}; only standard operators are allowed")
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ValueError("contains sparse tensors, which no bundle has")
            if attribute.ref_attr_name:
                raise ValueError(f"operator {_quoted(node.op_type)} refers to a function, which no bundle has")


def _check_tensor(tensor: Any, graph_bytes: int, weights: str, weights_bytes: int) -> None:
    name = f"tensor {_quoted(tensor.name)}"
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"{name} has dimensions {list(tensor.dims)}")
    count = prod(tensor.dims)
    if not (tensor.data_location or tensor.external_data):
        # A number takes at least four bits, whatever its field.
        if count > 2 * graph_bytes:
            raise ValueError(f"{name} claims {count} numbers, more than fit into the file")
        return
    keys = [entry.key for entry in tensor.external_data]
    place = {entry.key: entry.value for entry in tensor.external_data}
    if place.get(b"location") != weights.encode():
        location = _quoted(place.get(b"location", b""))
        raise ValueError(f"{name} is stored in {location}; weights must be in {weights}")
    if len(place) < len(keys) or not place.keys() <= {b"location", b"offset", b"length"}:
        raise ValueError(f"{name} must have one location, offset and length, has {', '.join(map(_quoted, keys))}")
    if tensor.data_type not in ITEM_BYTES:
        raise ValueError(f"{name} has data type {tensor.data_type}, which weights cannot have")
    size = count * ITEM_BYTES[tensor.data_type]
    offset = _number(place.get(b"offset", b"0"), name)
    length = _number(place.get(b"length", b"%d" % size), name)
    if length != size:
        raise ValueError(f"{name} claims {length} bytes, must have {size}")
    if offset + length > weights_bytes:
        raise ValueError(f"{name} is at {offset} to {offset + length} in {weights}, which has {weights_bytes} bytes")


def _number(text: bytes, name: str) -> int:
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise ValueError(f"{name}: offset and length must be numbers below 10^{MAX_DIGITS}, one is {_quoted(text)}")
    return int(text)


def _quoted(text: bytes) -> str:
    """The start of `text`, safe to log."""
    return repr(text[:60].decode("utf-8", "replace"))
