"""T5 and mT5 against transformers: logits, tokens, and the exported graphs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.bundle.graph_decoder import GraphDecoder
from dragoman.bundle.manifest import Bundle
from dragoman.export.graph_writer import dimensions_of, show_logits, write_graphs
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import greedy, pad
from tests.support.harness import manifest
from tests.support.hugging_face import import_checkpoint as read
from tests.support.hugging_face_t5 import KINDS, UNTIED, make_t5
from tests.support.tiny import sentences


@dataclass(frozen=True)
class Pair:
    """A checkpoint of transformers, and its import."""

    folder: Path
    tokenizer: Any
    model: Any
    ours: Checkpoint


def make_pair(kind: str, folder: Path) -> Pair:
    model = make_t5(kind, folder)
    return Pair(folder, transformers.AutoTokenizer.from_pretrained(folder), model, read(folder))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(kind, tmp_path_factory.mktemp("t5") / "tiny")


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids [B, S] and the mask for transformers."""
    ids, lengths = pad(rows, 0)
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def right_logits(model: Any, rows: Sequence[Sequence[int]], target: Tensor) -> Tensor:
    ids, visible = padded(rows)
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, attention_mask=visible, decoder_input_ids=target).logits
    return logits


def test_logits_equal_transformers(kind: str, pair: Pair) -> None:
    assert pair.ours.config.family == ("mt5" if kind == "mt5" else "t5")
    assert pair.ours.config.architecture.tied_output == (kind not in UNTIED)
    rows = [pair.ours.tokenizer.encode(text, "en", "fr") for text in sentences(8)]
    target = torch.randint(3, len(pair.tokenizer), (8, 40), generator=torch.Generator().manual_seed(1))
    right = right_logits(pair.model, rows, target)
    assert right.std() > 0.1
    with torch.no_grad():
        found = pair.ours.model(*pad(rows, 0), target)
    assert (found - right).abs().max() < 1e-4


def test_greedy_tokens_equal_generate(pair: Pair) -> None:
    texts = sentences(24, seed=2)
    rows = [pair.ours.tokenizer.encode(text, "en", "de") for text in texts]
    reference = pair.tokenizer([f"translate English to German: {text}" for text in texts])
    assert rows == reference["input_ids"]
    ids, visible = padded(rows)
    right = pair.model.generate(ids, attention_mask=visible, num_beams=1, do_sample=False, max_length=25)
    found = greedy(pair.ours.model, pair.ours.config.decoding, rows, [24] * len(rows))
    words = 0
    for row, output in enumerate(found):
        sure = next((step for step, margin in enumerate(output.margins) if margin < 1e-3), len(output.tokens))
        assert list(output.tokens[:sure]) == right[row, 1 : 1 + sure].tolist()
        words += len(set(output.tokens[:sure]))
    assert words >= 8 * len(rows)


def test_logits_of_forty_graph_steps_equal_transformers(tmp_path: Path) -> None:
    pair = make_pair("v1.1", tmp_path / "tiny")
    rules = pair.ours.config.decoding
    write_graphs(tmp_path, pair.ours.model, rules)
    show_logits(tmp_path)
    sizes = dimensions_of(pair.ours.config.architecture)
    what = dataclasses.replace(manifest(), dimensions=sizes, decoding=rules)
    decoder = GraphDecoder(Bundle(tmp_path, what), threads=1, logits=True)
    rows = [pair.ours.tokenizer.encode(text) for text in sentences(5, seed=4)]
    targets = np.random.default_rng(4).integers(3, len(pair.tokenizer), (len(rows), 40)).tolist()
    fed = torch.tensor([[rules.start_id, *target[:-1]] for target in targets])
    right = right_logits(pair.model, rows, fed).numpy()
    together = np.stack([step["logits"] for step in decoder.force(rows, targets)], axis=1)
    assert np.abs(together - right).max() < 1e-4
    for row, (source, target) in enumerate(zip(rows, targets, strict=True)):
        alone = np.stack([step["logits"] for step in decoder.force([source], [target])], axis=1)
        assert np.array_equal(alone[0], together[row])


class TestWeights:
    @pytest.fixture
    def v10(self, tmp_path: Path) -> Path:
        return make_pair("v1.0", tmp_path / "tiny").folder

    def change(self, folder: Path, changes: Mapping[str, Tensor | None]) -> None:
        tensors = load_file(folder / "model.safetensors")
        for name, tensor in changes.items():
            tensors.pop(name, None)
            if tensor is not None:
                tensors[name] = tensor.clone()
        save_file(tensors, folder / "model.safetensors")

    def test_the_table_may_have_any_of_its_names(self, v10: Path) -> None:
        before = read(v10).model.projection.weight.clone()
        shared = load_file(v10 / "model.safetensors")["shared.weight"]
        self.change(v10, {"shared.weight": None, "decoder.embed_tokens.weight": shared, "lm_head.weight": shared})
        assert torch.equal(read(v10).model.projection.weight, before)

    def test_a_separate_output_in_a_tied_model_is_refused(self, v10: Path) -> None:
        self.change(v10, {"lm_head.weight": torch.randn_like(load_file(v10 / "model.safetensors")["shared.weight"])})
        with pytest.raises(ValueError, match=r"lm_head.weight differs from shared.weight, to which it is tied"):
            read(v10)

    def test_missing_and_unknown_tensors_are_named(self, v10: Path) -> None:
        bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self.change(v10, {bias: None, "decoder.block.0.layer.2.adapter.weight": torch.ones(3)})
        with pytest.raises(ValueError, match=f"{bias} is missing; .*adapter.weight is not part of this architecture"):
            read(v10)

    def test_a_leftover_of_early_checkpoints_is_ignored(self, v10: Path) -> None:
        leftover = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        self.change(v10, {leftover: torch.ones(8, 4)})
        read(v10)

    def test_an_unknown_feed_forward_is_named(self, v10: Path) -> None:
        config = json.loads((v10 / "config.json").read_text())
        (v10 / "config.json").write_text(json.dumps(config | {"feed_forward_proj": "gated-sine"}))
        with pytest.raises(ValueError, match=r"config.json: feed_forward_proj must be .* is 'gated-sine'"):
            read(v10)
