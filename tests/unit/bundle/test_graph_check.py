"""Graphs that would do more than compute, or claim more than there is."""

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
    """A node that holds `graph`."""
    return node("If", then_branch=graph, else_branch=helper.make_graph([], "e", [], []))


def branch(*nodes: Any, initializers: tuple[Any, ...] = ()) -> Any:
    return helper.make_graph(list(nodes), "b", [], [], list(initializers))


def save(folder: Path, made: Any) -> tuple[Path, Path]:
    (folder / "weights.bin").write_bytes(WEIGHTS)
    (folder / "encoder.onnx").write_bytes(made.SerializeToString())
    return folder / "encoder.onnx", folder / "weights.bin"


def test_what_is_in_order_passes_and_runs(tmp_path: Path) -> None:
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
"""What ONNX calls the messages of SCHEMA."""

HOLDERS = {"FunctionProto", "GraphProto", "NodeProto", "SparseTensorProto", "TensorProto", "TrainingInfoProto"}
"""What may hold an operator or a tensor."""


@pytest.mark.parametrize("name", OWN_NAMES)
def test_the_part_of_the_schema_is_onnx_s_and_leaves_out_nothing_that_could_hide_something(name: str) -> None:
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
def test_the_graphs_that_are_exported_pass(name: str) -> None:
    check_graph(BUNDLE / name, BUNDLE / "weights.bin")


def refusal(folder: Path, made: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check_graph(*save(folder, made))
    return str(caught.value)


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml", "ai.onnx", "evil"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_operator_that_is_not_standard_is_refused_wherever_it_stands(
    domain: str, depth: int, tmp_path: Path
) -> None:
    made = node("Gelu", domain)
    for _ in range(depth):
        made = within(branch(made))
    assert f"operator 'Gelu' is of domain '{domain}'" in refusal(tmp_path, model(made))


@pytest.mark.parametrize(
    ("opsets", "asked"),
    [
        ((), "none"),
        ((("", OPSET + 1),), f"'' {OPSET + 1}"),
        ((("com.microsoft", 1),), "'com.microsoft' 1"),
        ((("", OPSET), ("com.microsoft", 1)), f"'' {OPSET}, 'com.microsoft' 1"),
        ((("", OPSET), ("", 1)), f"'' {OPSET}, '' 1"),
    ],
)
def test_another_set_of_operators_is_refused(opsets: tuple[tuple[str, int], ...], asked: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, model(opsets=opsets)).endswith(f"asks for {asked}")


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
        (functions, "holds functions"),
        (training, "holds training_info"),
        (sparse, "holds sparse tensors"),
        (sparse_within, "holds sparse tensors"),
        (reference, "operator 'Add' refers to a function"),
    ],
)
def test_whatever_else_could_hide_an_operator_or_a_size_is_refused(change: Change, fault: str, tmp_path: Path) -> None:
    made = model()
    change(made)
    assert fault in refusal(tmp_path, made)


PLACES: list[tuple[dict[str, object], str]] = [
    ({"location": "/etc/passwd"}, "lies in '/etc/passwd'; weights lie in weights.bin alone"),
    ({"location": "../weights.bin"}, "lies in '../weights.bin'"),
    ({"location": "./weights.bin"}, "lies in './weights.bin'"),
    ({"location": "golden.json"}, "lies in 'golden.json'"),
    ({"location": None}, "lies in ''"),
    ({"location": "*/_ORT_MEM_ADDR_/*", "offset": 4096}, "_ORT_MEM_ADDR_"),
    ({"offset": 56}, "lies at 56 to 72 in weights.bin, which has 64 bytes"),
    ({"offset": 2**62}, "its place is given as"),
    ({"offset": 10**17}, "which has 64 bytes"),
    ({"offset": -16}, "its place is given as '-16'"),
    ({"offset": "0x10"}, "its place is given as '0x10'"),
    ({"offset": ""}, "its place is given as ''"),
    ({"length": 12}, "takes 12 bytes, should take 16"),
    ({"length": 2**40}, f"takes {2**40} bytes, should take 16"),
    ({"checksum": "0"}, "its place is told by"),
]


@pytest.mark.parametrize(("place", "fault"), PLACES)
@pytest.mark.parametrize("where", ["a weight", "a constant", "within"])
def test_weights_lie_in_the_file_of_weights_and_nowhere_else(
    place: dict[str, object], fault: str, where: str, tmp_path: Path
) -> None:
    tensor = external(**place)
    made = {
        "a weight": lambda: model(weights=tensor),
        "a constant": lambda: model(node("Constant", value=tensor)),
        "within": lambda: model(within(branch(node(), initializers=(tensor,)))),
    }[where]()
    assert fault in refusal(tmp_path, made)


def test_two_places_for_one_weight_are_refused(tmp_path: Path) -> None:
    tensor = external()
    tensor.external_data.add(key="location", value="weights.bin")
    assert "its place is told by 'location', 'offset', 'length', 'location'" in refusal(tmp_path, model(weights=tensor))


def test_a_place_counts_even_where_the_tensor_says_that_it_has_its_numbers(tmp_path: Path) -> None:
    tensor = external(location="/etc/passwd")
    tensor.data_location = TensorProto.DEFAULT
    assert "lies in '/etc/passwd'" in refusal(tmp_path, model(weights=tensor))


@pytest.mark.parametrize(
    ("dims", "fault"),
    [([-4], "has dimensions"), ([2**40], "numbers, more than the file can hold"), ([2**62, 2**62], "more than")],
)
def test_a_tensor_that_claims_more_numbers_than_there_can_be_is_refused(
    dims: list[int], fault: str, tmp_path: Path
) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(16))
    assert fault in refusal(tmp_path, model(weights=tensor))
    outside = external()
    outside.dims[:] = dims
    assert refusal(tmp_path, model(weights=outside)).startswith("tensor 'w' ")


def test_strings_lie_in_no_file_of_weights(tmp_path: Path) -> None:
    tensor = external()
    tensor.data_type = TensorProto.STRING
    assert "is of type 8, of which no weights are" in refusal(tmp_path, model(weights=tensor))


def test_a_second_graph_that_protobuf_would_put_onto_the_first_is_seen(tmp_path: Path) -> None:
    path, weights = save(tmp_path, model())
    more = onnx.ModelProto()
    more.graph.node.append(node("Gelu", "com.microsoft"))
    path.write_bytes(path.read_bytes() + more.SerializeToString())
    with pytest.raises(ValueError, match=r"domain 'com.microsoft'"):
        check_graph(path, weights)


@pytest.mark.parametrize("part", [b"", b"x" * 100, b"\xff" * 100, b"\x3a\xff\xff\xff\xff\x7f"])
def test_what_is_no_graph_is_refused(part: bytes, tmp_path: Path) -> None:
    path, weights = save(tmp_path, model())
    path.write_bytes(part)
    with pytest.raises(ValueError, match=r"not a whole ONNX graph|asks for none"):
        check_graph(path, weights)


def wrapped(tag: int, content: bytes) -> bytes:
    """A message as a field of another, its length in three bytes."""
    length = len(content)
    return bytes((tag, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14)) + content


def test_graphs_within_graphs_end_somewhere(tmp_path: Path) -> None:
    graph = b""
    for _ in range(2000):
        # A graph is an attribute's, that is a node's, that is a graph's.
        graph = wrapped(0x0A, wrapped(0x2A, wrapped(0x32, graph)))
    path, weights = save(tmp_path, model())
    path.write_bytes(path.read_bytes() + wrapped(0x3A, graph))
    with pytest.raises(ValueError, match="not a whole ONNX graph"):
        check_graph(path, weights)


def test_a_graph_of_any_size_is_not_read(tmp_path: Path) -> None:
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
def test_the_rest_is_refused_by_the_runtime_itself(made: Any, tmp_path: Path) -> None:
    path, weights = save(tmp_path, made)
    check_graph(path, weights)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(path)
