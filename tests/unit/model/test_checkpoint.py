import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, own_weights, save_checkpoint
from tests.support.tiny import TINY, tiny_checkpoint

EMBEDDING = "source_embedding.tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tiny"


@pytest.fixture
def checkpoint(folder: Path) -> Checkpoint:
    return tiny_checkpoint(folder)


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "weights.safetensors")
    change(weights)
    save_file(weights, folder / "weights.safetensors")


def save_again(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    save_checkpoint(folder, checkpoint.config, own_weights(checkpoint.model), folder / "tokenizer", dtype)


def test_saving_and_loading_is_lossless(checkpoint: Checkpoint, folder: Path) -> None:
    again = load_checkpoint(folder)
    assert again.config == checkpoint.config
    assert again.tokenizer.encode("A kite.") == checkpoint.tokenizer.encode("A kite.")
    for name, tensor in own_weights(checkpoint.model).items():
        assert torch.equal(own_weights(again.model)[name], tensor), name


@pytest.mark.usefixtures("checkpoint")
def test_all_files_have_the_same_permissions(folder: Path) -> None:
    modes = {path.stat().st_mode for path in folder.rglob("*") if path.is_file()}
    assert len(modes) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_loaded_to_float32_in_eval_mode(
    checkpoint: Checkpoint, folder: Path, dtype: torch.dtype
) -> None:
    save_again(checkpoint, folder, dtype)
    with safe_open(folder / "weights.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {dtype}  # noqa: SIM118 (not a dict)
    again = load_checkpoint(folder)
    assert not again.model.training
    for name, tensor in own_weights(checkpoint.model).items():
        assert own_weights(again.model)[name].dtype == torch.float32
        assert torch.equal(own_weights(again.model)[name], tensor.to(dtype).float()), name


def test_tied_weights_are_stored_once(checkpoint: Checkpoint, folder: Path) -> None:
    assert checkpoint.model.projection.weight is checkpoint.model.target_embedding.tokens.weight
    shapes = [tuple(tensor.shape) for tensor in load_file(folder / "weights.safetensors").values()]
    assert shapes.count((TINY.target_vocabulary, TINY.d_model)) == 1


def test_untied_weights_are_each_stored(tmp_path: Path) -> None:
    untied = dataclasses.replace(TINY, shared_embedding=False, tied_output=False)
    checkpoint = tiny_checkpoint(tmp_path / "untied", architecture=untied)
    model = checkpoint.model
    tables = [model.source_embedding.tokens.weight, model.target_embedding.tokens.weight, model.projection.weight]
    assert not any(torch.equal(tables[i], tables[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    shapes = [tuple(tensor.shape) for tensor in load_file(tmp_path / "untied" / "weights.safetensors").values()]
    assert shapes.count((TINY.target_vocabulary, TINY.d_model)) == 3


@pytest.mark.usefixtures("checkpoint")
def test_all_faulty_tensors_are_named_at_once(folder: Path) -> None:
    def spoil(weights: dict[str, Tensor]) -> None:
        del weights["decoder.1.cross_attention.key.weight"]
        del weights["encoder_norm.bias"]
        weights["encoder.2.feed_forward.inner.bias"] = torch.zeros(64)
        weights["encoder.0.feed_forward.inner.weight"] = torch.zeros(32, 64)

    change_weights(folder, spoil)
    with pytest.raises(ValueError, match=r"weights\.safetensors: ") as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "decoder.1.cross_attention.key.weight is missing" in message
    assert "encoder_norm.bias is missing" in message
    assert "encoder.2.feed_forward.inner.bias is not part of this architecture" in message
    assert "encoder.0.feed_forward.inner.weight has shape [32, 64], should have [64, 32]" in message
    assert message.count(";") == 3


@pytest.mark.usefixtures("checkpoint")
def test_a_second_copy_of_a_tied_weight_is_refused(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"projection.weight": weights[EMBEDDING] + 1}))
    with pytest.raises(ValueError, match=r"projection\.weight is not part of this architecture"):
        load_checkpoint(folder)


@pytest.mark.usefixtures("checkpoint")
@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "tokenizer/sentencepiece.model"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_checkpoint(folder)


@pytest.mark.usefixtures("checkpoint")
@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer/sentencepiece.model"])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_named(folder: Path, name: str, part: float) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ValueError, match=name):
        load_checkpoint(folder)


def safetensors(header: object, data: bytes = bytes(64), length: int | None = None) -> bytes:
    """A file with any header, and optionally a false `length` of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


LIES = {
    "a header longer than the file": safetensors({}, length=2**20),
    "a header longer than memory": safetensors({}, length=2**62),
    "a tensor that ends beyond the file": safetensors({EMBEDDING: tensor([2**30], 0, 2**32)}),
    "a tensor larger than its place": safetensors({EMBEDDING: tensor([2**30], 0, 64)}),
    "a shape whose product overflows": safetensors({EMBEDDING: tensor([2**40, 2**40], 0, 64)}),
    "a place of negative size": safetensors({EMBEDDING: tensor([16], 64, 0)}),
    "two tensors in one place": safetensors({EMBEDDING: tensor([16], 0, 64), "other": tensor([16], 0, 64)}),
    "a gap": safetensors({EMBEDDING: tensor([8], 32, 64)}),
    "a negative size": safetensors({EMBEDDING: tensor([-4], 0, 64)}),
    "a type that is none": safetensors({EMBEDDING: tensor([16], 0, 64, "OBJECT")}),
    "no JSON": safetensors(b"\x80\x04cposix\nsystem\n"),
    "JSON nested too deeply": safetensors(b"[" * 10**6),
}


@pytest.mark.usefixtures("checkpoint")
@pytest.mark.parametrize("lie", LIES)
def test_a_false_header_is_refused_before_any_allocation(folder: Path, lie: str) -> None:
    (folder / "weights.safetensors").write_bytes(LIES[lie])
    with pytest.raises(ValueError, match=r"weights\.safetensors: not a complete safetensors file"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoder_layers", 10**9),
        ("decoder_layers", 10**9),
        ("max_positions", 10**10),
        ("d_model", 2**31),
        ("heads", -1),
    ],
)
def test_a_config_that_would_exhaust_memory_is_refused(
    checkpoint: Checkpoint, folder: Path, field: str, value: int
) -> None:
    plain = json.loads((folder / "config.json").read_text())
    plain["architecture"][field] = value
    (folder / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=rf"config\.json: architecture\.{field}"):
        load_checkpoint(folder)


def test_the_size_of_the_position_table_is_bounded(checkpoint: Checkpoint, folder: Path) -> None:
    plain = json.loads((folder / "config.json").read_text())
    plain["architecture"] |= {"max_positions": 2**20, "d_model": 2**20}
    (folder / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="max_positions × d_model must be at most"):
        load_checkpoint(folder)


def test_a_tokenizer_of_another_size_is_refused(checkpoint: Checkpoint, folder: Path) -> None:
    larger = dataclasses.replace(checkpoint.config.architecture, source_vocabulary=500, target_vocabulary=500)
    dataclasses.replace(checkpoint.config, architecture=larger).save(folder / "config.json")
    with pytest.raises(ValueError, match="source_vocabulary must be the tokenizer's 340 pieces, is 500"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ({"prompt_tokens": 2}, "decoding.prompt_tokens must be the tokenizer's 1, is 2"),
        ({"start_id": 5}, "decoding.start_id must be the tokenizer's 1, is 5"),
    ],
)
def test_rules_that_contradict_the_prompts_are_refused(
    checkpoint: Checkpoint, folder: Path, rule: dict[str, Any], fault: str
) -> None:
    rules = dataclasses.replace(checkpoint.config.decoding, max_output_tokens=40, **rule)
    dataclasses.replace(checkpoint.config, decoding=rules).save(folder / "config.json")
    with pytest.raises(ValueError, match=fault):
        load_checkpoint(folder)


# --- replacing a checkpoint


def test_replacing_a_checkpoint_keeps_its_model_card(checkpoint: Checkpoint, folder: Path) -> None:
    (folder / "README.md").write_text("what it was trained on")
    save_again(checkpoint, folder)
    assert (folder / "README.md").read_text() == "what it was trained on"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "tokenizer",
        "weights.safetensors",
    ]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_failed_save_leaves_the_old_checkpoint_intact(checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    before = (folder / "weights.safetensors").read_bytes()
    zeros = {name: tensor * 0 for name, tensor in own_weights(checkpoint.model).items()}
    with pytest.raises(FileNotFoundError):
        save_checkpoint(folder, checkpoint.config, zeros, tmp_path / "no-such-tokenizer")
    assert (folder / "weights.safetensors").read_bytes() == before
    load_checkpoint(folder)
    save_again(checkpoint, folder)  # leftovers of the failed save do not matter
    assert list(folder.parent.iterdir()) == [folder]


def test_a_save_killed_between_its_renames_loses_nothing(checkpoint: Checkpoint, folder: Path) -> None:
    (folder / "README.md").write_text("what it was trained on")
    tokenizer = shutil.copytree(folder / "tokenizer", folder.with_name("tokenizer"))
    folder.rename(folder.with_name("tiny.former"))
    save_checkpoint(folder, checkpoint.config, own_weights(checkpoint.model), tokenizer)
    assert (folder / "README.md").read_text() == "what it was trained on"
    assert sorted(folder.parent.iterdir()) == [folder, tokenizer]


@pytest.mark.parametrize(("value", "dtype"), [(1e5, torch.float16), (float("nan"), torch.float32)])
def test_weights_beyond_the_file_type_are_refused_by_name(
    checkpoint: Checkpoint, folder: Path, value: float, dtype: torch.dtype
) -> None:
    before = (folder / "weights.safetensors").read_bytes()
    weights = dict(own_weights(checkpoint.model))
    weights[EMBEDDING] = weights[EMBEDDING].clone()
    weights[EMBEDDING][3, 3] = value
    with pytest.raises(ValueError, match=f"^{EMBEDDING}: must be finite as {dtype}"):
        save_checkpoint(folder, checkpoint.config, weights, folder / "tokenizer", dtype)
    assert (folder / "weights.safetensors").read_bytes() == before
