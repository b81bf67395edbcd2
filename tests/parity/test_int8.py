"""The 8-bit model and its export."""

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from dragoman.bundle.graph_decoder import GraphDecoder
from dragoman.bundle.graphs import DECODER_FILE
from dragoman.bundle.manifest import PRODUCT_FILE, WEIGHTS_FILE, Bundle
from dragoman.bundle.precision import LOSSES
from dragoman.bundle.verify import VerificationError, check_product, verify_bundle
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.export.graph_writer import write_graphs, write_product
from dragoman.export.int8 import Int8Linear, multiply, quantize, quantize_rows
from dragoman.export.proof import check_loss, translate_sample
from dragoman.model.checkpoint import Checkpoint, own_weights
from dragoman.model.transformer import Transformer
from tests.parity.exports import check_bit_equal_scores, decoder_with_logits, state_differences
from tests.support.tiny import LARGE, TINY, clear_cut, random_model, sentences, tiny_rules


@pytest.fixture(scope="module")
def int8_bundle(checkpoint: Checkpoint, checkpoint_folder: Path) -> Bundle:
    options = ExportOptions(precision="int8", texts=sentences(160), force=True)
    made, _proof = export_checkpoint(checkpoint_folder, checkpoint_folder.with_name("int8"), options, lambda _: None)
    return made


def test_a_row_is_quantized_by_its_own_largest_value() -> None:
    weight, scale = quantize_rows(torch.tensor([[0.3, -0.2], [50.0, -25.0]]))
    assert weight.tolist() == [[127, -85], [127, -64]]
    assert scale.tolist() == pytest.approx([0.3 / 127, 50.0 / 127])


def test_a_small_row_keeps_its_values_beside_a_large_one() -> None:
    """One scale for both, as in per-tensor quantization, would turn [0.3, -0.2] into [0.392, -0.392]."""
    identity = Int8Linear(quantize_rows(torch.eye(2)), None)
    small = torch.tensor([[0.30, -0.20]])
    alone = identity(small)
    beside = identity(torch.cat((small, torch.tensor([[50.0, -50.0]]))))
    assert torch.equal(alone[0], beside[0])
    assert alone[0].tolist() == pytest.approx([0.30, -0.20], abs=0.30 / 254)


def test_a_row_of_zeros_gives_the_bias() -> None:
    linear = Int8Linear(quantize_rows(torch.randn(3, 4)), nn.Parameter(torch.tensor([1.0, 2.0, 3.0])))
    assert linear(torch.zeros(1, 4)).tolist() == [[1.0, 2.0, 3.0]]


def test_a_non_negative_input_has_twice_as_many_levels() -> None:
    table = quantize_rows(torch.eye(2))
    x = torch.tensor([[0.0, 1.0], [0.3, 0.1]])
    fine = (Int8Linear(table, None, positive=True)(x) - x).abs().max()
    coarse = (Int8Linear(table, None)(x) - x).abs().max()
    assert fine <= 0.3 / 510 + 1e-7 < coarse


@pytest.mark.parametrize(("activation", "gated"), [("relu", False), ("relu", True), ("gelu", False)])
def test_only_the_result_of_relu_counts_as_non_negative(activation: Literal["relu", "gelu"], gated: bool) -> None:
    model = quantize(random_model(dataclasses.replace(TINY, activation=activation, gated=gated)))
    positive = {name for name, module in model.named_modules() if isinstance(module, Int8Linear) and module.positive}
    outer = {name for name, _ in model.named_modules() if name.endswith("feed_forward.outer")}
    assert positive == (outer if activation == "relu" and not gated else set())


@pytest.mark.parametrize("terms", [1040, 1041, 4096])
def test_sums_equal_integer_sums(terms: int) -> None:
    """float32 is certain to sum at most 1040 of the largest products exactly."""
    weight = torch.full((1, terms), 127, dtype=torch.int8)
    weight[0, -1] = 126
    right = torch.tensor(127 * 127 * terms - 127).float()
    x, step = torch.full((1, terms), 127.0), torch.ones(1, 1)
    assert multiply(x, step, weight, positive=False).item() == right


def test_tied_weights_stay_tied() -> None:
    model = quantize(random_model())
    assert model.projection.weight is model.source_embedding.tokens.weight
    assert model.target_embedding.tokens is model.source_embedding.tokens or (
        model.target_embedding.tokens.weight is model.projection.weight
    )


def test_each_8_bit_weight_is_stored_once(int8_bundle: Bundle, checkpoint: Checkpoint) -> None:
    check_size(int8_bundle.path(WEIGHTS_FILE), quantize(checkpoint.model))


def test_a_large_8_bit_vocabulary_is_stored_once(tmp_path: Path) -> None:
    model = quantize(random_model(LARGE))
    write_graphs(tmp_path, model, tiny_rules(LARGE))
    check_size(tmp_path / WEIGHTS_FILE, model)


def check_size(weights_file: Path, model: Transformer) -> None:
    config = model.config
    weights = sum(tensor.numel() * tensor.element_size() for tensor in own_weights(model).values())
    suppressed, positions = 4 * config.target_vocabulary, 4 * config.max_positions * config.d_model
    aligned = 64 * 100
    assert weights_file.stat().st_size <= weights + suppressed + positions + aligned


def test_the_graphs_have_standard_operators_only(int8_bundle: Bundle) -> None:
    model = onnx.load(int8_bundle.path(DECODER_FILE), load_external_data=False)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 24)]
    assert "MatMulInteger" in {node.op_type for node in model.graph.node}
    stored = {tensor.name for tensor in model.graph.initializer}
    in_float = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm") and stored & set(node.input)]
    assert not in_float, "only attention, which has no weights, multiplies in float32"


def test_states_equal_the_int8_model_up_to_rounding(int8_bundle: Bundle, checkpoint: Checkpoint) -> None:
    model, decoder = quantize(checkpoint.model), GraphDecoder(int8_bundle, threads=1)
    sources = [checkpoint.tokenizer.encode(text) for text in sentences(40)]
    differences = state_differences(model, decoder, sources)
    assert np.median(differences) < 1e-4
    assert differences.max() < 0.5


@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_bit_equal_in_any_batch(threads: int, int8_bundle: Bundle) -> None:
    check_bit_equal_scores(int8_bundle, threads)


def test_the_report_has_the_loss_of_precision(int8_bundle: Bundle) -> None:
    loss = int8_bundle.report()["loss_of_precision"]
    assert 0.5 < loss["agreement"] <= 1.0
    assert loss["steps"] > 1000
    assert int8_bundle.manifest.precision == "int8"


def test_a_loss_beyond_the_bounds_is_refused_unless_forced(
    checkpoint: Checkpoint, bundle: Bundle, other_weights: Path, tmp_path: Path
) -> None:
    decoder = decoder_with_logits(other_weights, bundle, tmp_path)
    float32 = translate_sample(checkpoint, list(clear_cut(checkpoint, sentences(20))))
    with pytest.raises(VerificationError, match="loss of precision: .* choose as float32"):
        check_loss(decoder, float32, LOSSES["int8"], accept=False)
    check, figures = check_loss(decoder, float32, LOSSES["int8"], accept=True)
    assert figures["agreement"] < 0.5
    assert figures["log_prob_drop"] > 1.0
    assert "drops by" in check.detail


def test_float32_loses_nothing_against_itself(checkpoint: Checkpoint, logits_decoder: GraphDecoder) -> None:
    float32 = translate_sample(checkpoint, list(clear_cut(checkpoint, sentences(20))))
    _check, figures = check_loss(logits_decoder, float32, LOSSES["int8"], accept=False)
    assert figures["agreement"] == 1.0
    assert abs(figures["log_prob_drop"]) < 1e-5


class TestTheKnownProduct:
    def test_is_part_of_the_verification(self, int8_bundle: Bundle) -> None:
        names = [check.name for check in verify_bundle(int8_bundle, threads=1)]
        assert names == ["tokenizer", "known product", "golden answers", "alone equals batched"]

    def test_a_saturated_sum_fails_the_verification(self, int8_bundle: Bundle, tmp_path: Path) -> None:
        write_product(tmp_path)
        model = onnx.load(tmp_path / PRODUCT_FILE)
        model.graph.initializer[0].int32_data[0] = 0  # as if the processor had lost a product
        onnx.save(model, tmp_path / PRODUCT_FILE)
        with pytest.raises(VerificationError, match="known product: .* serve the float32 bundle"):
            check_product(Bundle(tmp_path, int8_bundle.manifest))
