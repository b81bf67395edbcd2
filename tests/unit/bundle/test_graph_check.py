"""Graphs that do more than compute, or claim more data than they have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dragoman.bundle.graph_check import MAX_BYTES, SCHEMA, check_graph
from dragoman.bundle.graphs import OPSET
from dragoman.bundle.runtime import onnxruntime
from tests.golden.shipped import BUNDLE

WEIGHTS = np.arange(16, dtype=np.float32).tobytes()

Change = Callable[[Any], object]


def node(operator: str = "Add", domain: str = "", **attributes: Any) -> Any:
    return helper.make_node(operator, ["x", "w"], ["y"], domain=domain, **attributes)


def external(**place: object) -> Any:
    """Four of the sixteen numbers in the file of weights, unless `place` says otherwise."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "weights.bin", "offset": 16, "length": 16} | place).items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(*nodes: Any, weights: Any = None, opsets: tuple[tuple[str, int], ...] = (("", OPSET),)) -> Any:
    row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    initializer = external() if weights is None else weights
    graph = helper.make_graph(list(nodes or [node()]), "g", row[:1], row[1:], [initializer])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*each) for each in opsets], ir_version=10)


def within(graph: Any) -> Any:
    """A node that contains `graph`."""
    return node("If", then_branch=graph, else_branch=helper.make_graph([], "e", [], []))


def branch(*nodes: Any, initializers: tuple[Any, ...] = ()) -> Any:
    return helper.make_graph(list(nodes), "b", [], [], list(initializers))


def save(folder: Path, made: Any) -> tuple[Path, Path]:
    (folder / "weights.bin").write_bytes(WEIGHTS)
    (folder / "encoder.onnx").write_bytes(made.SerializeToString())
    return folder / "encoder.onnx", folder / "weights.bin"


def test_a_valid_graph_passes_and_runs(tmp_path: Path) -> None:
    path, weights = save(tmp_path, model())
    check_graph(path, weights)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": np.zeros(4, np.float32)})
    assert found.tolist() == [4, 5, 6, 7]


OWN_NAMES: dict[str, Any] = {
    "Model": onnx.ModelProto,
    "Opset": onnx.OperatorSetIdProto,
    "Graph": onnx.GraphProto,
    "Node": onnx.NodeProto,
    "Attribute": onnx.AttributeProto,
    "Tensor": onnx.TensorProto,
    "Entry": onnx.StringStringEntryProto,
}
"""The messages of SCHEMA in ONNX."""

HOLDERS = {"FunctionProto", "GraphProto", "NodeProto", "SparseTensorProto", "TensorProto", "TrainingInfoProto"}
"""ONNX's messages that may contain an operator or a tensor."""


@pytest.mark.parametrize("name", OWN_NAMES)
def test_the_schema_matches_onnx_and_covers_all_holders(name: str) -> None:
    theirs = OWN_NAMES[name].DESCRIPTOR.fields_by_name
    assert {field: number for field, (number, _) in SCHEMA[name].items()} == {
        field: theirs[field].number for field in SCHEMA[name]
    }
    assert {field for field, (_, kind) in SCHEMA[name].items() if kind.startswith("*")} == {
        field for field in SCHEMA[name] if theirs[field].is_repeated
    }
    holders = {field.name for field in theirs.values() if field.message_type and field.message_type.name in HOLDERS}
    assert holders <= SCHEMA[name].keys()


@pytest.mark.parametrize("name", ["encoder.onnx", "decoder.onnx", "product.onnx"])
def test_exported_graphs_pass(name: str) -> None:
    check_graph(BUNDLE / name, BUNDLE / "weights.bin")


def refusal(folder: Path, made: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check_graph(*save(folder, made))
    return str(caught.value)


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml", "ai.onnx", "evil"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_nonstandard_operator_is_refused_at_any_depth(domain: str, depth: int, tmp_path: Path) -> None:
    made = node("Gelu", domain)
    for _ in range(depth):
        made = within(branch(made))
    assert f"operator 'Gelu' is of domain '{domain}'" in refusal(tmp_path, model(made))


@pytest.mark.parametrize(
    ("opsets", "imported"),
    [
        ((), "none"),
        ((("", OPSET + 1),), f"'' {OPSET + 1}"),
        ((("com.microsoft", 1),), "'com.microsoft' 1"),
        ((("", OPSET), ("com.microsoft", 1)), f"'' {OPSET}, 'com.microsoft' 1"),
        ((("", OPSET), ("", 1)), f"'' {OPSET}, '' 1"),
    ],
)
def test_another_operator_set_is_refused(opsets: tuple[tuple[str, int], ...], imported: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, model(opsets=opsets)).endswith(f"imports {imported}")


def functions(made: Any) -> None:
    body = [helper.make_node("Gelu", ["a"], ["b"], domain="com.microsoft")]
    made.functions.append(helper.make_function("", "Add", ["a"], ["b"], body, [helper.make_opsetid("", OPSET)]))


def training(made: Any) -> None:
    made.training_info.add().algorithm.node.append(node("Gelu", "com.microsoft"))


def sparse(made: Any) -> None:
    tensor = made.graph.sparse_initializer.add(dims=[2**40])
    tensor.values.name = "s"


def sparse_within(made: Any) -> None:
    made.graph.node[0].attribute.add(name="sparse_value", type=11).sparse_tensor.dims.append(2**40)


def reference(made: Any) -> None:
    made.graph.node[0].attribute.add(name="axis", ref_attr_name="axis", type=2)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (functions, "contains functions"),
        (training, "contains training_info"),
        (sparse, "contains sparse tensors"),
        (sparse_within, "contains sparse tensors"),
        (reference, "operator 'Add' refers to a function"),
    ],
)
def test_other_hiding_places_for_operators_are_refused(change: Change, fault: str, tmp_path: Path) -> None:
    made = model()
    change(made)
    assert fault in refusal(tmp_path, made)


PLACES: list[tuple[dict[str, object], str]] = [
    ({"location": "/etc/passwd"}, "is stored in '/etc/passwd'; weights must be in weights.bin"),
    ({"location": "../weights.bin"}, "is stored in '../weights.bin'"),
    ({"location": "./weights.bin"}, "is stored in './weights.bin'"),
    ({"location": "golden.json"}, "is stored in 'golden.json'"),
    ({"location": None}, "is stored in ''"),
    ({"location": "*/_ORT_MEM_ADDR_/*", "offset": 4096}, "_ORT_MEM_ADDR_"),
    ({"offset": 56}, "is at 56 to 72 in weights.bin, which has 64 bytes"),
    ({"offset": 2**62}, f"must be numbers below 10^18, one is '{2**62}'"),
    ({"offset": 10**17}, "which has 64 bytes"),
    ({"offset": -16}, "must be numbers below 10^18, one is '-16'"),
    ({"offset": "0x10"}, "must be numbers below 10^18, one is '0x10'"),
    ({"offset": ""}, "must be numbers below 10^18, one is ''"),
    ({"length": 12}, "claims 12 bytes, must have 16"),
    ({"length": 2**40}, f"claims {2**40} bytes, must have 16"),
    ({"checksum": "0"}, "must have one location, offset and length, has 'location', 'offset', 'length', 'checksum'"),
]


@pytest.mark.parametrize(("place", "fault"), PLACES)
@pytest.mark.parametrize("where", ["a weight", "a constant", "within"])
def test_weights_outside_the_weights_file_are_refused(
    place: dict[str, object], fault: str, where: str, tmp_path: Path
) -> None:
    tensor = external(**place)
    made = {
        "a weight": lambda: model(weights=tensor),
        "a constant": lambda: model(node("Constant", value=tensor)),
        "within": lambda: model(within(branch(node(), initializers=(tensor,)))),
    }[where]()
    assert fault in refusal(tmp_path, made)


def test_two_locations_for_one_weight_are_refused(tmp_path: Path) -> None:
    tensor = external()
    tensor.external_data.add(key="location", value="weights.bin")
    found = refusal(tmp_path, model(weights=tensor))
    assert "must have one location, offset and length, has 'location', 'offset', 'length', 'location'" in found


def test_a_location_is_checked_even_for_inline_tensors(tmp_path: Path) -> None:
    tensor = external(location="/etc/passwd")
    tensor.data_location = TensorProto.DEFAULT
    assert "is stored in '/etc/passwd'" in refusal(tmp_path, model(weights=tensor))


@pytest.mark.parametrize(
    ("dims", "fault"),
    [([-4], "has dimensions"), ([2**40], "numbers, more than fit into the file"), ([2**62, 2**62], "more than")],
)
def test_a_tensor_with_an_impossible_size_is_refused(dims: list[int], fault: str, tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(16))
    assert fault in refusal(tmp_path, model(weights=tensor))
    outside = external()
    outside.dims[:] = dims
    assert refusal(tmp_path, model(weights=outside)).startswith("tensor 'w' ")


def test_external_strings_are_refused(tmp_path: Path) -> None:
    tensor = external()
    tensor.data_type = TensorProto.STRING
    assert "has data type 8, which weights cannot have" in refusal(tmp_path, model(weights=tensor))


def test_a_second_graph_that_protobuf_merges_is_checked(tmp_path: Path) -> None:
    path, weights = save(tmp_path, model())
    more = onnx.ModelProto()
    more.graph.node.append(node("Gelu", "com.microsoft"))
    path.write_bytes(path.read_bytes() + more.SerializeToString())
    with pytest.raises(ValueError, match=r"domain 'com.microsoft'"):
        check_graph(path, weights)


@pytest.mark.parametrize("part", [b"", b"x" * 100, b"\xff" * 100, b"\x3a\xff\xff\xff\xff\x7f"])
def test_other_content_than_a_graph_is_refused(part: bytes, tmp_path: Path) -> None:
    path, weights = save(tmp_path, model())
    path.write_bytes(part)
    with pytest.raises(ValueError, match=r"not a complete ONNX graph|imports none"):
        check_graph(path, weights)


def wrapped(tag: int, content: bytes) -> bytes:
    """A message as a field of another, its length in three bytes."""
    length = len(content)
    return bytes((tag, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14)) + content


def test_deeply_nested_graphs_are_refused(tmp_path: Path) -> None:
    graph = b""
    for _ in range(2000):
        # A graph inside an attribute, inside a node, inside a graph.
        graph = wrapped(0x0A, wrapped(0x2A, wrapped(0x32, graph)))
    path, weights = save(tmp_path, model())
    path.write_bytes(path.read_bytes() + wrapped(0x3A, graph))
    with pytest.raises(ValueError, match="not a complete ONNX graph"):
        check_graph(path, weights)


def test_an_oversized_graph_is_refused(tmp_path: Path) -> None:
    path, weights = save(tmp_path, model())
    with path.open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match=f"has {MAX_BYTES + 1} bytes, may have {MAX_BYTES}"):
        check_graph(path, weights)


@pytest.mark.parametrize(
    "made",
    [
        model(node("NoSuchOperator")),
        model(node(), weights=TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(4))),
        model(node(), weights=TensorProto(name="w", data_type=99, dims=[4], raw_data=bytes(16))),
    ],
    ids=["no such operator", "too few numbers", "no such type"],
)
def test_the_runtime_itself_refuses_other_faults(made: Any, tmp_path: Path) -> None:
    path, weights = save(tmp_path, made)
    check_graph(path, weights)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(path)
