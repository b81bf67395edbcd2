"""BERT, RoBERTa and what sentence-transformers makes of them, against transformers: states, bundles and vectors."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from dragoman.bundle.graphs import DECODER_FILE
from dragoman.bundle.manifest import GOLDEN_FILE, Bundle, open_bundle
from dragoman.bundle.rules import EmbeddingRules
from dragoman.bundle.verify import VerificationError, verify_bundle
from dragoman.client.values import Pooling
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.model.checkpoint import Checkpoint
from dragoman.service.cli import main
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.loading.loader import load_model
from dragoman.service.settings import ServerSettings
from tests.support.hugging_face import import_checkpoint as read
from tests.support.hugging_face_tokenizers import bert, roberta
from tests.support.tiny import sentences

SHAPE: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}
POSITIONS = 64

WRITERS: Mapping[str, Callable[[Path], Any]] = {"bert": bert, "roberta": roberta, "masked bert": bert}


@dataclass(frozen=True)
class Pair:
    """An encoder of transformers, and its import."""

    folder: Path
    tokenizer: Any
    model: Any
    ours: Checkpoint

    def states(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The states of transformers for one text alone."""
        with torch.no_grad():
            found: NDArray[np.float32] = self.model(torch.tensor([ids])).last_hidden_state[0].numpy()
        return found


def make_pair(kind: str, folder: Path) -> Pair:
    tokenizer = WRITERS[kind](folder)
    settings = {"vocab_size": len(tokenizer), **SHAPE}
    config: Any
    if kind == "roberta":
        config = transformers.RobertaConfig(max_position_embeddings=POSITIONS + 2, layer_norm_eps=1e-5, **settings)
    else:
        config = transformers.BertConfig(max_position_embeddings=POSITIONS, **settings)
    masked = kind == "masked bert"
    model: Any = {"bert": transformers.BertModel, "roberta": transformers.RobertaModel}.get(kind)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        made = transformers.BertForMaskedLM(config) if masked else model(config)
        for name, parameter in made.named_parameters():
            if "LayerNorm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    made.save_pretrained(folder)
    return Pair(folder, tokenizer, (made.bert if masked else made).eval(), read(folder))


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def as_sentence_encoder(folder: Path, mode: str = "cls_token", normalize: bool = True) -> None:
    """Write the files of sentence-transformers beside an encoder."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
    write(
        folder / "modules.json",
        [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds],
    )
    modes = {f"pooling_mode_{each}": each == mode for each in ("cls_token", "mean_tokens", "max_tokens")}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **modes})
    write(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})


@pytest.fixture(scope="module", params=WRITERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(request.param, tmp_path_factory.mktemp("encoder") / "tiny")


@pytest.fixture(scope="module")
def sentence_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("sentence") / "tiny"
    pair = make_pair("bert", folder)
    as_sentence_encoder(folder)
    return Pair(folder, pair.tokenizer, pair.model, read(folder))


@pytest.fixture(scope="module")
def bundle(sentence_pair: Pair) -> Bundle:
    options = ExportOptions(texts=sentences(80))
    made, _proof = export_checkpoint(
        sentence_pair.folder, sentence_pair.folder.with_name("bundle"), options, lambda _stage: None
    )
    return made


def test_states_equal_transformers(pair: Pair) -> None:
    rows = [[*pair.tokenizer(text)["input_ids"]] for text in sentences(8)]
    assert rows == [pair.ours.tokenizer.encode(text) for text in sentences(8)]
    rows.append((rows[0][:-1] * 20)[: POSITIONS - 1] + rows[0][-1:])
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), POSITIONS), pair.ours.config.decoding.pad_id)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    with torch.no_grad():
        found = pair.ours.model.encode(ids, lengths).numpy()
    for index, row in enumerate(rows):
        right = pair.states(row)
        assert right.std() > 0.5
        assert np.abs(found[index, : len(row)] - right).max() < 1e-4


def test_an_encoder_has_no_decoder_and_no_target_languages(pair: Pair) -> None:
    config = pair.ours.config
    assert config.architecture.decoder_layers == 0
    assert config.target_languages == ()
    assert config.decoding.max_source_tokens == POSITIONS
    assert config.embedding == EmbeddingRules("mean", normalize=True)
    assert {name.split(".")[0] for name, _ in pair.ours.model.named_parameters()} == {"source_embedding", "encoder"}


class TestABundleThatOnlyEmbeds:
    def test_gives_the_states_of_transformers_in_any_batch(self, sentence_pair: Pair, bundle: Bundle) -> None:
        runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=32)
        sources = [sentence_pair.ours.tokenizer.encode(text)[:20] for text in sentences(30, seed=3)]
        together = runner.embed(sources)
        for source, states in zip(sources, together, strict=True):
            assert np.abs(states - sentence_pair.states(source)).max() < 1e-4
            (alone,) = runner.embed([source])
            assert np.array_equal(alone, states)
        runner.rest()
        assert runner.memory().cache_reserved == 0

    def test_has_one_graph_and_embedding_rules(self, bundle: Bundle) -> None:
        assert not bundle.manifest.translates
        assert not bundle.path(DECODER_FILE).exists()
        assert bundle.manifest.embedding == EmbeddingRules("cls", normalize=True)
        assert bundle.manifest.decoding.max_source_tokens == 20

    def test_is_proven_and_verified_by_its_states(self, bundle: Bundle) -> None:
        names = [check["name"] for check in bundle.report()["checks"]]
        assert names == ["names and axes", "shapes", "states", "states of texts", "alone equals batched"]
        assert [check.name for check in verify_bundle(bundle, threads=1)] == [
            "tokenizer",
            "golden answers",
            "alone equals batched",
        ]
        assert len(bundle.golden()) >= 64

    def test_other_states_fail_the_verification(self, bundle: Bundle, tmp_path: Path) -> None:
        for entry in bundle.manifest.files:
            (tmp_path / entry.path).parent.mkdir(exist_ok=True)
            (tmp_path / entry.path).write_bytes(bundle.path(entry.path).read_bytes())
        golden = json.loads((tmp_path / GOLDEN_FILE).read_text())
        golden[3]["mean_state"][7] += 0.01
        (tmp_path / GOLDEN_FILE).write_text(json.dumps(golden))
        with pytest.raises(VerificationError, match="golden answers: the mean state of text 3 differs by 1.0e-02"):
            verify_bundle(Bundle(tmp_path, bundle.manifest), threads=1)

    def test_is_loaded_and_warmed_up_without_a_step(self, bundle: Bundle) -> None:
        loaded = load_model(open_bundle(bundle.folder), ServerSettings(threads_per_lane=1, lanes=2))
        assert len(loaded.runners) == 2
        assert Pooling(loaded.manifest.embedding.pooling) is Pooling.CLS

    def test_is_refused_by_bench(self, bundle: Bundle) -> None:
        result = CliRunner().invoke(main, ["bench", str(bundle.folder)])
        assert result.exit_code == 1
        assert "only embeds" in result.output


def test_the_report_of_int8_has_the_cosine_with_float32(sentence_pair: Pair) -> None:
    options = ExportOptions("int8", texts=sentences(70))
    made, proof = export_checkpoint(
        sentence_pair.folder, sentence_pair.folder.with_name("int8"), options, lambda _stage: None
    )
    assert [check.name for check in proof.checks][-1] == "loss of precision"
    assert 0.98 <= made.report()["loss_of_precision"]["mean_cosine"] < 1.0


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return make_pair("bert", tmp_path / "tiny").folder

    def test_training_heads_are_ignored_and_others_named(self, folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        assert any(name.startswith("pooler.") for name in tensors)
        save_file({**tensors, "classifier.weight": torch.ones(2, 32)}, folder / "model.safetensors")
        with pytest.raises(ValueError, match=r"classifier.weight is not part of this architecture"):
            read(folder)

    def test_other_kinds_of_positions_are_refused(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        write(folder / "config.json", {**config, "position_embedding_type": "relative_key"})
        with pytest.raises(ValueError, match=r"config.json: position_embedding_type must be 'absolute', is"):
            read(folder)

    @pytest.mark.parametrize(("mode", "kind"), [("mean_tokens", "mean"), ("max_tokens", "max")])
    def test_pooling_and_normalization_follow_the_modules(self, mode: str, kind: Any, folder: Path) -> None:
        as_sentence_encoder(folder, mode, normalize=False)
        assert read(folder).config.embedding == EmbeddingRules(kind, normalize=False)

    def test_unsupported_settings_are_named(self, folder: Path) -> None:
        as_sentence_encoder(folder, "weightedmean_tokens")
        with pytest.raises(ValueError, match=r"1_Pooling/config.json: pooling must be one of .* is none"):
            read(folder)
        as_sentence_encoder(folder)
        write(folder / "sentence_bert_config.json", {"do_lower_case": True})
        with pytest.raises(ValueError, match=r"sentence_bert_config.json: do_lower_case is not supported"):
            read(folder)
        as_sentence_encoder(folder)
        write(folder / "config_sentence_transformers.json", {"default_prompt_name": "query"})
        with pytest.raises(ValueError, match=r"config_sentence_transformers.json: default_prompt_name"):
            read(folder)
        write(folder / "modules.json", [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}])
        with pytest.raises(ValueError, match=r"modules.json: module Dense at '2_Dense' is not supported"):
            read(folder)
