"""The exported graphs against the original PyTorch model."""

import copy
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from dragoman.bundle.graph_decoder import Decoded, GraphDecoder, Ids, decode_alone
from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE
from dragoman.bundle.manifest import GOLDEN_FILE, Bundle, open_bundle
from dragoman.bundle.precision import TOLERANCES
from dragoman.bundle.runtime import onnxruntime
from dragoman.bundle.verify import VerificationError, compare_batches, verify_bundle
from dragoman.export import exporter
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.export.graph_writer import WeightsFile, dimensions_of, show_logits, write_graphs
from dragoman.export.proof import check_cached, check_names_and_axes, check_tokens, translate_sample
from dragoman.model.checkpoint import Checkpoint, load_checkpoint, own_weights
from dragoman.model.greedy import greedy, pad
from dragoman.model.transformer import Transformer
from tests.parity.exports import check_bit_equal_scores, copier, copy_graphs
from tests.support.tiny import GATED, LARGE, PAPER, TINY, clear_cut, random_model, sentences, tiny_rules

VARIANTS = {
    "post-norm": PAPER,
    "gelu, output bias, unscaled": dataclasses.replace(
        TINY, activation="gelu", output_bias=True, scale_embedding=False
    ),
    "learned positions, two embeddings": dataclasses.replace(
        TINY, position_kind="learned", position_offset=2, shared_embedding=False, tied_output=False
    ),
    "all of T5's": GATED,
}
"""Variants of architecture that the tiny checkpoint does not have."""


def export_quietly(checkpoint_folder: Path, bundle_folder: Path, force: bool = False) -> None:
    options = ExportOptions(texts=sentences(70), force=force)
    export_checkpoint(checkpoint_folder, bundle_folder, options, lambda _stage: None)


def test_logits_equal_pytorch_at_every_size(checkpoint: Checkpoint, logits_decoder: GraphDecoder) -> None:
    check_logits(logits_decoder, checkpoint.model)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_other_variants_equal_pytorch(name: str, bundle: Bundle, tmp_path: Path) -> None:
    model = random_model(VARIANTS[name])
    write_graphs(tmp_path, model, tiny_rules())
    show_logits(tmp_path)
    manifest = dataclasses.replace(bundle.manifest, dimensions=dimensions_of(model.config))
    check_logits(GraphDecoder(Bundle(tmp_path, manifest), threads=1, logits=True), model)


def check_logits(decoder: GraphDecoder, model: Transformer) -> None:
    """Compare logits with PyTorch's in float64, so that only the rounding of the graphs counts.

    The attention of a tiny model is sharp, most of all T5's, which is not scaled; each layer multiplies earlier
    rounding errors. A logit may therefore be off by 1e-4, or by twice the error of PyTorch's in float32.
    """
    exact, rules = copy.deepcopy(model).double(), tiny_rules()
    ours, theirs = [0.0], [0.0]
    rng = np.random.default_rng(0)
    allowed = [token for token in range(TINY.target_vocabulary) if token not in rules.suppressed_ids]
    for batch in (1, 2, 3, 8):
        for width in (1, 2, 7, 19, TINY.max_positions):
            for target in (1, 2, 11):
                sources = [rng.integers(4, 340, max(1, width - row)).tolist() for row in range(batch)]
                targets = rng.integers(4, 340, (batch, target)).tolist()
                ids, lengths = pad(sources, rules.pad_id)
                fed = torch.tensor([[rules.start_id, *row[:-1]] for row in targets])
                with torch.no_grad():
                    right = exact(ids, lengths, fed)[..., allowed].numpy()
                    rounded = model(ids, lengths, fed)[..., allowed].numpy()
                found = np.stack([step["logits"] for step in decoder.force(sources, targets)], axis=1)[..., allowed]
                ours.append(float(np.abs(found - right).max()))
                theirs.append(float(np.abs(rounded - right).max()))
    assert np.max(ours) < max(1e-4, 2 * max(theirs))


def test_suppressed_tokens_have_minus_infinity_as_logit(bundle: Bundle, logits_decoder: GraphDecoder) -> None:
    (step,) = logits_decoder.force([[5, 6, 2]], [[4]])
    assert np.isneginf(step["logits"][0, list(bundle.manifest.decoding.suppressed_ids)]).all()
    assert np.isfinite(step["log_prob"]).all()


def test_exports_traced_at_other_sizes_give_the_same_answers(
    checkpoint: Checkpoint, bundle: Bundle, tmp_path: Path
) -> None:
    sizes = {"batch": 3, "source": 11, "capacity": 24}
    write_graphs(tmp_path, checkpoint.model, checkpoint.config.decoding, trace_sizes=sizes)
    sources = [checkpoint.tokenizer.encode(text) for text in sentences(20)]
    limits = [40] * len(sources)
    others = GraphDecoder(Bundle(tmp_path, bundle.manifest), threads=1).decode(sources, limits)
    assert GraphDecoder(bundle, threads=1).decode(sources, limits) == others


def test_no_axis_is_frozen_at_its_traced_size(bundle: Bundle) -> None:
    fixed = {bundle.manifest.dimensions.heads, bundle.manifest.dimensions.head_width, TINY.d_model, 1}
    for name in (ENCODER_FILE, DECODER_FILE):
        graph = onnx.load(bundle.path(name), load_external_data=False).graph
        for value in (*graph.input, *graph.output):
            numbers = {axis.dim_value for axis in value.type.tensor_type.shape.dim if axis.HasField("dim_value")}
            assert numbers <= fixed, value.name


def test_the_graphs_have_standard_operators_only(bundle: Bundle) -> None:
    for name in (ENCODER_FILE, DECODER_FILE):
        model = onnx.load(bundle.path(name), load_external_data=False)
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 24)]
        assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
        assert not model.functions


def test_the_graphs_contain_no_paths(bundle: Bundle) -> None:
    for name in (ENCODER_FILE, DECODER_FILE):
        assert b".py" not in bundle.path(name).read_bytes()


def test_source_lengths_mask_every_cross_attention(bundle: Bundle) -> None:
    graph = onnx.load(bundle.path(DECODER_FILE), load_external_data=False).graph
    tainted: set[str] = {"source_lengths"}
    masks: list[str] = []
    for node in graph.node:
        if tainted & set(node.input):
            if node.op_type == "Where":
                masks += node.output
            elif not masks:
                tainted.update(node.output)
    (mask,) = masks
    masked = [node.output[0] for node in graph.node if node.op_type == "Add" and mask in node.input]
    weights = [node for node in graph.node if node.op_type == "Softmax" and node.input[0] in masked]
    assert len(weights) == TINY.decoder_layers


@pytest.mark.parametrize("tied", [True, False])
def test_each_weight_is_stored_once(tied: bool, tmp_path: Path) -> None:
    large = dataclasses.replace(LARGE, tied_output=tied)
    model = random_model(large)
    write_graphs(tmp_path, model, tiny_rules(large))
    weights = sum(4 * tensor.numel() for tensor in own_weights(model).values())
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert stored <= 1.1 * weights


def test_forty_forced_steps_keep_cached_equal_to_uncached(checkpoint: Checkpoint, bundle: Bundle) -> None:
    model, rules = checkpoint.model, checkpoint.config.decoding
    endless = dataclasses.replace(rules, suppressed_ids=(0, 1, 2, 3))
    sources = [checkpoint.tokenizer.encode(text) for text in sentences(8)]
    targets = [output.tokens for output in greedy(model, endless, sources, [40] * len(sources))]
    assert {len(target) for target in targets} == {40}
    found = list(GraphDecoder(bundle, threads=1).force(sources, targets))
    with torch.no_grad():
        logits = model(
            *pad(sources, rules.pad_id), torch.tensor([[rules.start_id, *target[:-1]] for target in targets])
        )
    logits[..., list(rules.suppressed_ids)] = -torch.inf
    best, tokens = (pair.unbind(-1) for pair in logits.topk(2))
    log_probs = logits.log_softmax(dim=-1).amax(dim=-1)
    for step in range(40):
        for row in range(len(sources)):
            if best[0][row, step] - best[1][row, step] > 1e-3:
                assert found[step]["next_token"][row, 0] == tokens[0][row, step], (row, step)
                assert abs(found[step]["log_prob"][row] - log_probs[row, step]) < 1e-4


def test_greedy_tokens_equal_the_reference(checkpoint: Checkpoint, bundle: Bundle) -> None:
    answers = clear_cut(checkpoint, sentences(120, seed=5))
    assert len(answers) > 100
    sources = [checkpoint.tokenizer.encode(text) for text in answers]
    limits = [checkpoint.config.decoding.output_limit(len(source)) for source in sources]
    found = GraphDecoder(bundle, threads=1).decode(sources, limits)
    assert [output.tokens for output in found] == [output.tokens for output in answers.values()]


@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_bit_equal_in_any_batch(threads: int, bundle: Bundle) -> None:
    check_bit_equal_scores(bundle, threads)


class BatchDependentDecoder(GraphDecoder):
    """A decoder whose answers change in batches of more than two rows."""

    def __init__(self) -> None:
        """Opens no graphs."""

    def decode(
        self, sources: Sequence[Ids], limits: Sequence[int], prompts: Sequence[Ids] | None = None
    ) -> list[Decoded]:
        crowded = len(sources) > 2
        return [Decoded((7 if crowded else 6,), (-1.0 if crowded else -0.5,)) for _ in sources]


class TestTheProof:
    def test_a_bundle_verifies_where_it_was_made(self, bundle: Bundle) -> None:
        names = [check.name for check in verify_bundle(bundle, threads=2)]
        assert names == ["tokenizer", "golden answers", "alone equals batched"]

    def test_the_report_lists_the_checks(self, bundle: Bundle) -> None:
        report = bundle.report()
        names = ["names and axes", "shapes", "states and logits", "cached equals uncached", "greedy tokens"]
        assert [check["name"] for check in report["checks"]] == [*names, "alone equals batched"]
        assert report["greedy_tokens"]["whole_part"] >= 0.95
        assert report["versions"]["torch"] == torch.__version__

    def test_golden_texts_are_many_and_of_all_lengths(self, bundle: Bundle) -> None:
        golden = bundle.golden()
        assert len(golden) >= 64
        assert all(len(text.margins) == len(text.log_probs) == len(text.tokens) for text in golden)
        assert len({len(text.source_ids) for text in golden}) > 5

    def test_other_weights_fail_the_verification(self, bundle: Bundle, other_weights: Path, tmp_path: Path) -> None:
        copy_graphs(other_weights, tmp_path)
        for name in (GOLDEN_FILE, "tokenizer"):
            (tmp_path / name).symlink_to(bundle.path(name))
        with pytest.raises(VerificationError, match="golden answers: text 0 gives other tokens"):
            verify_bundle(Bundle(tmp_path, bundle.manifest), threads=1)

    def test_rows_changed_by_a_batch_fail_or_are_counted(self) -> None:
        sources, limits = [(5, 2)] * 6, [1] * 6
        decoder = BatchDependentDecoder()
        alone = decode_alone(decoder, sources, limits)
        with pytest.raises(
            VerificationError, match="alone equals batched: text . gives other tokens in a batch of 3 than alone"
        ):
            compare_batches(decoder, sources, limits, alone)
        check = compare_batches(decoder, sources, limits, alone, strict=False)
        # Of 6 rows in each of the four batch sizes, only those in pairs keep their answers.
        assert "24 rows in batches of 2, 3, 8, 32: 6 with equal tokens, 6 with bit-equal" in check.detail

    def test_an_unavailable_provider_is_refused(self, bundle: Bundle) -> None:
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            pytest.skip("this ONNX Runtime has CUDA")
        with pytest.raises(VerificationError, match="provider: cuda is not in this ONNX Runtime, which has"):
            verify_bundle(bundle, threads=1, provider="cuda")

    def test_another_tokenizer_fails_the_verification(self, bundle: Bundle, tmp_path: Path) -> None:
        for entry in bundle.manifest.files:
            (tmp_path / entry.path).parent.mkdir(exist_ok=True)
            (tmp_path / entry.path).write_bytes(bundle.path(entry.path).read_bytes())
        golden = json.loads((tmp_path / GOLDEN_FILE).read_text())
        golden[3]["source_ids"][0] += 1
        (tmp_path / GOLDEN_FILE).write_text(json.dumps(golden))
        with pytest.raises(VerificationError, match="tokenizer: text 3"):
            verify_bundle(Bundle(tmp_path, bundle.manifest), threads=1)

    def test_other_choices_than_the_reference_fail_the_proof(
        self, checkpoint: Checkpoint, bundle: Bundle, other_weights: Path
    ) -> None:
        sample, tolerance = translate_sample(checkpoint, sentences(20)), TOLERANCES["float32"]
        decoder = GraphDecoder(Bundle(other_weights, bundle.manifest), threads=1)
        with pytest.raises(VerificationError, match=r"cached equals uncached: text \d+, step \d+ chooses"):
            check_cached(decoder, sample, tolerance)
        alone = decode_alone(decoder, sample.sources, [len(output.tokens) for output in sample.outputs])
        with pytest.raises(VerificationError, match="greedy tokens: text 0 differs from the reference"):
            check_tokens(alone, sample, tolerance)

    def test_a_renamed_input_fails_the_proof(self, bundle: Bundle, tmp_path: Path) -> None:
        for name in (ENCODER_FILE, DECODER_FILE):
            model = onnx.load(bundle.path(name), load_external_data=False)
            if name == ENCODER_FILE:
                model.graph.input[1].name = "attention_mask"
            onnx.save(model, tmp_path / name)
        with pytest.raises(VerificationError, match="encoder.onnx: inputs are .*attention_mask"):
            check_names_and_axes(Bundle(tmp_path, bundle.manifest))

    def test_a_failed_check_keeps_the_old_bundle_alone(
        self, bundle: Bundle, checkpoint_folder: Path, other_weights: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exporter, "write_graphs", copier(other_weights))
        beside = sorted(bundle.folder.parent.iterdir())
        with pytest.raises(VerificationError, match="states and logits: encoder states differ"):
            export_quietly(checkpoint_folder, bundle.folder, force=True)
        assert open_bundle(bundle.folder).manifest == bundle.manifest
        assert sorted(bundle.folder.parent.iterdir()) == beside

    def test_an_existing_bundle_is_replaced_only_by_force(self, bundle: Bundle, checkpoint_folder: Path) -> None:
        with pytest.raises(FileExistsError, match="--force"):
            export_quietly(checkpoint_folder, bundle.folder)

    def test_force_replaces_a_bundle_reached_through_a_link(
        self, bundle: Bundle, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exporter, "write_graphs", copier(bundle.folder))
        shutil.copytree(bundle.folder, tmp_path / "real")
        (tmp_path / "link").symlink_to("real")
        texts = [text.text for text in bundle.golden()]
        options = ExportOptions(texts=texts, force=True)
        export_checkpoint(checkpoint_folder, tmp_path / "link", options, lambda _stage: None)
        assert open_bundle(tmp_path / "real").manifest.name == "tiny"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]

    @pytest.mark.usefixtures("checkpoint")
    def test_force_replaces_nothing_but_a_bundle(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(checkpoint_folder, tmp_path / "checkpoint")
        with pytest.raises(FileExistsError, match="checkpoint: not a bundle, so --force does not replace it"):
            export_quietly(folder, folder, force=True)
        load_checkpoint(folder)

    def test_a_sample_that_proves_too_little_is_refused(
        self, bundle: Bundle, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strict = dataclasses.replace(TOLERANCES["float32"], margin=0.5)
        monkeypatch.setitem(TOLERANCES, "float32", strict)
        monkeypatch.setattr(exporter, "write_graphs", copier(bundle.folder))
        with pytest.raises(VerificationError, match="greedy tokens: only .* texts could be compared whole"):
            export_quietly(checkpoint_folder, tmp_path / "bundle")


def test_random_texts_reach_the_whole_vocabulary(checkpoint: Checkpoint) -> None:
    texts = exporter.random_texts(checkpoint.tokenizer)
    reached = {token for text in texts for token in checkpoint.tokenizer.encode(text)}
    words = set(range(4 + 256, checkpoint.tokenizer.vocabulary))  # after control ids and bytes
    assert len(reached & words) > 0.9 * len(words)
    assert {len(checkpoint.tokenizer.encode(text)) for text in texts} >= set(range(3, 20))


def test_a_bundle_works_from_any_folder(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "a bündle"
    for entry in [*bundle.manifest.files, None]:
        name = entry.path if entry else "manifest.json"
        (moved / name).parent.mkdir(parents=True, exist_ok=True)
        (moved / name).write_bytes(bundle.path(name).read_bytes())
    monkeypatch.chdir(tmp_path)
    verify_bundle(open_bundle(Path("a bündle")), threads=1)


def test_either_of_two_end_tokens_ends_an_output(checkpoint: Checkpoint, bundle: Bundle, tmp_path: Path) -> None:
    answers = clear_cut(checkpoint, sentences(30))
    second = next(output.tokens[0] for output in answers.values() if len(output.tokens) > 2)
    rules = dataclasses.replace(checkpoint.config.decoding, end_ids=(2, second))
    decoder = GraphDecoder(Bundle(bundle.folder, dataclasses.replace(bundle.manifest, decoding=rules)), threads=1)
    sources = [checkpoint.tokenizer.encode(text) for text in answers]
    limits = [rules.output_limit(len(source)) for source in sources]
    found = decoder.decode(sources, limits)
    assert [output.tokens for output in found] == [o.tokens for o in greedy(checkpoint.model, rules, sources, limits)]
    assert {output.tokens[-1] for output in found} >= {2, second}


def test_an_existing_weights_file_is_replaced(tmp_path: Path) -> None:
    before = tmp_path / "weights.bin"
    before.write_bytes(b"older weights")
    WeightsFile(before)
    assert before.read_bytes() == b""
