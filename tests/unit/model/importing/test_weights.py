"""The files of weights, and the account of every tensor."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.model.checkpoint import own_weights
from dragoman.model.importing.weights import read_folder
from dragoman.model.transformer import sinusoid_table
from tests.support.hugging_face import BART_LIKE, make
from tests.support.hugging_face import import_checkpoint as read

FILE = "model.safetensors"
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written("marian", tmp_path_factory.mktemp("marian") / "tiny")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written("marian, untied", tmp_path_factory.mktemp("untied") / "tiny")


def written(variant: str, folder: Path) -> Path:
    make(BART_LIKE[variant], folder)
    return folder


def changed(folder: Path, to: Path, change: Callable[[Weights], object]) -> Path:
    """A copy of the folder with other weights."""
    shutil.copytree(folder, to)
    weights = load_file(to / FILE)
    change(weights)
    save_file(weights, to / FILE)
    return to


def same(one: Path, other: Path) -> bool:
    left, right = own_weights(read(one).model), own_weights(read(other).model)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def shard(folder: Path, names: tuple[str, str], write: Callable[[Weights, Path], object], index: str) -> None:
    weights = load_file(folder / FILE)
    (folder / FILE).unlink()
    half = len(weights) // 2
    parts = dict(zip(names, (list(weights)[:half], list(weights)[half:]), strict=True))
    for name, part in parts.items():
        write({each: weights[each] for each in part}, folder / name)
    listed = {each: name for name, part in parts.items() for each in part}
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def in_shards(folder: Path) -> None:
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    shard(folder, names, save_file, "model.safetensors.index.json")


def in_pickled_shards(folder: Path) -> None:
    names = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    shard(folder, names, torch.save, "pytorch_model.bin.index.json")


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / FILE), folder / "pytorch_model.bin")
    (folder / FILE).unlink()


def pickled_long_ago(folder: Path) -> None:
    torch.save(load_file(folder / FILE), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / FILE).unlink()


@pytest.mark.parametrize("rewrite", [in_shards, in_pickled_shards, pickled, pickled_long_ago])
def test_weights_are_the_same_in_any_kind_of_file(
    rewrite: Callable[[Path], None], marian: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(marian, folder)
    rewrite(folder)
    assert same(folder, marian)


def test_float16_becomes_float32(marian: Path, tmp_path: Path) -> None:
    def halve(weights: Weights) -> None:
        weights.update({name: tensor.half() for name, tensor in weights.items()})

    found = own_weights(read(changed(marian, tmp_path / "half", halve)).model)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}


def test_code_in_a_pickle_is_not_run(marian: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    shutil.copytree(marian, tmp_path / "trap")
    (tmp_path / "trap" / FILE).unlink()
    torch.save({"model.shared.weight": Trap()}, tmp_path / "trap" / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"pytorch_model.bin: cannot be read as a file of tensors: it would run code, getattr"
    ):
        read_folder(tmp_path / "trap")
    assert not (tmp_path / "sprung").exists()


def test_the_pickles_of_fairseq_and_opennmt_are_refused(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace(arch="transformer"), "model": {}}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"it would run code, argparse\.Namespace"):
        read_folder(tmp_path)


@pytest.mark.parametrize("old", [False, True])
def test_an_expanded_tensor_is_refused(old: bool, tmp_path: Path) -> None:
    tensor = torch.zeros(1).expand(2**20, 2**20)
    torch.save({"model.shared.weight": tensor}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    with pytest.raises(ValueError, match=r"model\.shared\.weight claims more numbers than the file has"):
        read_folder(tmp_path)


def test_a_sparse_tensor_is_refused(tmp_path: Path) -> None:
    sparse = torch.sparse_coo_tensor(
        torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (2**20, 2**20), check_invariants=True
    )
    torch.save({"model.shared.weight": sparse}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model\.shared\.weight claims more numbers"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("content", ["[" * 10**6, "[1]", '{"weight_map": {"a": "../b"}}', '{"weight_map": {"a": 1}}'])
def test_an_invalid_index_of_shards_is_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name}: "):
        read_folder(tmp_path)


def test_a_truncated_file_is_reported_as_damaged(marian: Path, tmp_path: Path) -> None:
    shutil.copytree(marian, tmp_path / "cut")
    pickled(tmp_path / "cut")
    path = tmp_path / "cut" / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"pytorch_model.bin: cannot be read as a file of tensors: it is damaged"):
        read_folder(tmp_path / "cut")


def test_a_missing_shard_is_named(marian: Path, tmp_path: Path) -> None:
    shutil.copytree(marian, tmp_path / "cut")
    in_shards(tmp_path / "cut")
    (tmp_path / "cut" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00002.safetensors: missing"):
        read_folder(tmp_path / "cut")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor pytorch_model.bin"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "names", [("lm_head.weight",), ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")]
)
def test_a_tied_embedding_may_have_several_names(names: tuple[str, ...], marian: Path, tmp_path: Path) -> None:
    def add(weights: Weights) -> None:
        weights.update({name: weights["model.shared.weight"].clone() for name in names})

    assert same(changed(marian, tmp_path / "more", add), marian)


def test_a_tied_embedding_may_have_any_of_its_names(marian: Path, tmp_path: Path) -> None:
    def rename(weights: Weights) -> None:
        weights["lm_head.weight"] = weights.pop("model.shared.weight")

    assert same(changed(marian, tmp_path / "renamed", rename), marian)


def test_a_tied_tensor_that_differs_is_refused(marian: Path, tmp_path: Path) -> None:
    def add(weights: Weights) -> None:
        weights["lm_head.weight"] = weights["model.shared.weight"] + 1

    folder = changed(marian, tmp_path / "torn", add)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.shared.weight, to which it is tied"):
        read(folder)


def test_an_untied_output_is_required(untied: Path, tmp_path: Path) -> None:
    folder = changed(untied, tmp_path / "headless", lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"lm_head.weight is missing"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.pop("model.decoder.layers.1.encoder_attn.k_proj.bias"),
            r"model.decoder.layers.1.encoder_attn.k_proj.bias is missing",
        ),
        (
            lambda weights: weights.update({"model.encoder.layers.0.fc1.weight": torch.zeros(3, 4)}),
            r"model.encoder.layers.0.fc1.weight has shape \[3, 4\], should give \[64, 32\]",
        ),
        (
            lambda weights: weights.update({"model.encoder.adapter.weight": torch.zeros(1)}),
            r"model.encoder.adapter.weight is not part of this architecture",
        ),
        (
            lambda weights: weights.update({"model.encoder.embed_positions.weight": torch.zeros(64, 32)}),
            r"model.encoder.embed_positions.weight is not this family's table of sinusoids",
        ),
    ],
)
def test_a_faulty_tensor_is_named(
    change: Callable[[Weights], object], message: str, marian: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read(changed(marian, tmp_path / "faulty", change))


def test_a_position_table_equal_to_ours_is_accepted(marian: Path, tmp_path: Path) -> None:
    table = sinusoid_table(64, 32, "sinusoid_halves")
    name = "model.encoder.embed_positions.weight"
    assert same(changed(marian, tmp_path / "old", lambda weights: weights.update({name: table})), marian)


def test_a_model_without_head_is_read_with_a_tied_head(tmp_path: Path) -> None:
    whole = make(BART_LIKE["bart"], tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "bare")
    whole.model.save_pretrained(tmp_path / "bare")
    found, right = (own_weights(read(tmp_path / name).model) for name in ("bare", "whole"))
    assert right.keys() - found.keys() == {"projection.bias"}
    assert all(torch.equal(tensor, right[name]) for name, tensor in found.items())


def test_a_tokenizer_larger_than_the_embedding_is_refused(marian: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(marian, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 99}))
    with pytest.raises(ValueError, match="the tokenizer has 100 source ids, the source embedding 99 rows"):
        read(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("activation_function", "mish", r"activation_function must be one of .*, is 'mish'"),
        ("decoder_ffn_dim", 65, "encoder_ffn_dim and decoder_ffn_dim must be equal, are .* 64, .* 65"),
        ("d_model", None, "config.json: d_model is missing"),
    ],
)
def test_an_invalid_setting_of_config_json_is_named(
    key: str, value: object, message: str, marian: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(marian, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ValueError, match=message):
        read(folder)
