"""The float16 model and its export, on the CPU: its ONNX Runtime has the operators in float16 too."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from dragoman.bundle.graph_decoder import GraphDecoder, decode_alone
from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE, encoder_spec
from dragoman.bundle.manifest import WEIGHTS_FILE, Bundle
from dragoman.bundle.precision import LOSSES
from dragoman.bundle.verify import VerificationError, verify_bundle
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.export.float16 import (
    MAX_NUMBER,
    VALUE_LIMIT,
    HalfLinear,
    WideLinear,
    divide,
    halve,
    join_halves,
    score_limit,
)
from dragoman.export.graph_writer import dimensions_of, show_logits, write_graphs
from dragoman.export.proof import check_loss, translate_sample
from dragoman.model.checkpoint import Checkpoint, own_weights
from dragoman.model.config import TransformerConfig
from dragoman.model.greedy import greedy
from dragoman.model.transformer import Transformer
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.runner import RowInput
from tests.parity.exports import check_bit_equal_scores, state_differences
from tests.support.harness import manifest
from tests.support.tiny import GATED, LARGE, PAPER, TINY, random_model, sentences, tiny_rules

LONG = dataclasses.replace(TINY, max_positions=256)


@pytest.fixture(scope="module")
def half_bundle(checkpoint: Checkpoint, checkpoint_folder: Path) -> Bundle:
    options = ExportOptions(precision="float16", texts=sentences(96))
    made, _proof = export_checkpoint(checkpoint_folder, checkpoint_folder.with_name("half"), options, lambda _: None)
    return made


def half_graphs(folder: Path, model: Transformer) -> GraphDecoder:
    """The graphs of `model` in float16, exported without proof, with a decoder that outputs logits."""
    rules = tiny_rules(model.config)
    write_graphs(folder, halve(model), rules, precision="float16")
    show_logits(folder)
    sizes = dimensions_of(model.config)
    half = dataclasses.replace(manifest(), dimensions=sizes, decoding=rules, precision="float16")
    return GraphDecoder(Bundle(folder, half), threads=1, logits=True)


def peak_of(module: nn.Module, model: Transformer, sources: list[list[int]]) -> float:
    """The largest output of `module` while `model` translates `sources`."""
    found: list[float] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output: found.append(float(output.abs().max())))
    greedy(model, tiny_rules(model.config), sources)
    hook.remove()
    return max(found)


def random_sources(count: int = 24, seed: int = 5) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(4, 340, length).tolist(), 2] for length in range(1, count + 1)]


class TestProducts:
    def test_are_summed_in_float32_and_rounded_once(self) -> None:
        linear = HalfLinear(torch.ones(1, 4096), torch.tensor([0.25]), torch.tensor([MAX_NUMBER]))
        assert linear(torch.full((1, 4096), 0.25)).item() == 1024.0  # 1024.25, between two float16
        assert linear(torch.full((1, 4096), 0.25)).dtype == torch.float16

    @pytest.mark.parametrize(("x", "y"), [(3.0, MAX_NUMBER), (-3.0, -MAX_NUMBER), (0.001, 40.0)])
    def test_beyond_the_range_are_clamped(self, x: float, y: float) -> None:
        linear = HalfLinear(torch.full((1, 1), 40_000.0), torch.zeros(1), torch.tensor([MAX_NUMBER]))
        assert linear(torch.tensor([[x]])).item() == pytest.approx(y, rel=1e-3)

    def test_of_an_input_beyond_the_range_are_finite(self) -> None:
        linear = HalfLinear(torch.tensor([[1.0, -1.0]]), torch.zeros(1), torch.tensor([MAX_NUMBER]))
        assert linear(torch.tensor([[1e6, 1e7]])).item() == 0.0  # and not infinity less infinity

    def test_for_the_residual_stream_may_leave_the_range(self) -> None:
        wide = WideLinear(divide(torch.full((1, 1), 40_000.0)), torch.tensor([1.0]))
        found = wide(torch.tensor([[3.0]]))
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(120_001.0, rel=1e-3)

    def test_ordinary_weights_are_not_divided(self) -> None:
        weight = torch.randn(8, 4)
        halved, exponent = divide(weight)
        assert exponent == 0
        assert torch.equal(halved, weight.half())

    def test_keep_the_limits_of_each_part_when_joined(self) -> None:
        limits = (90.0, VALUE_LIMIT)
        parts = [HalfLinear(torch.full((1, 1), 1e4), torch.zeros(1), torch.tensor([limit])) for limit in limits]
        assert join_halves(parts)(torch.tensor([[1e4]])).tolist() == [list(limits)]

    @pytest.mark.parametrize("width", [8, 32, 64, 128])
    def test_of_queries_and_keys_at_their_limit_fit(self, width: int) -> None:
        score = score_limit(width) ** 2 * width * width**-0.5
        assert MAX_NUMBER / 2 < score <= MAX_NUMBER


def test_tied_weights_stay_tied() -> None:
    model = halve(random_model())
    assert model.projection.weight is model.source_embedding.tokens.weight
    assert model.projection.weight is model.target_embedding.tokens.weight


def test_weights_that_float16_cannot_hold_are_refused_by_name() -> None:
    model = random_model()
    with torch.no_grad():
        model.get_parameter("encoder.1.feed_forward.inner.weight")[3, 3] = 7e4
    with pytest.raises(ValueError, match=r"encoder\.1\.feed_forward\.inner\.weight: must be finite .* reaches 7e\+04"):
        halve(model)


def test_each_weight_is_stored_once_in_two_bytes(tmp_path: Path) -> None:
    model = random_model(LARGE)
    write_graphs(tmp_path, halve(model), tiny_rules(LARGE), precision="float16")
    weights = sum(2 * tensor.numel() for tensor in own_weights(model).values())
    suppressed, positions = 4 * LARGE.target_vocabulary, 4 * LARGE.max_positions * LARGE.d_model
    aligned = 4096 * 40
    assert (tmp_path / WEIGHTS_FILE).stat().st_size <= weights + suppressed + positions + aligned


def test_softmax_and_norms_are_standard_and_in_float32(half_bundle: Bundle) -> None:
    model = onnx.load(half_bundle.path(DECODER_FILE), load_external_data=False)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 24)]
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    attentions = [node for node in model.graph.node if node.op_type == "Attention"]
    assert len(attentions) == 4
    for node in attentions:
        assert {entry.name: entry.i for entry in node.attribute}["softmax_precision"] == onnx.TensorProto.FLOAT
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    assert norms
    assert {types[node.input[1]] for node in norms} == {onnx.TensorProto.FLOAT}


def test_caches_and_cross_keys_are_float16_and_states_float32(half_bundle: Bundle) -> None:
    graph = onnx.load(half_bundle.path(ENCODER_FILE), load_external_data=False).graph
    found = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    assert found.pop("hidden") == onnx.TensorProto.FLOAT
    assert set(found.values()) == {onnx.TensorProto.FLOAT16}
    spec = encoder_spec(half_bundle.manifest.dimensions, "float16")
    assert [tensor.dtype for tensor in spec.outputs[:2]] == ["float32", "float16"]


def test_states_equal_the_float16_model_up_to_rounding(half_bundle: Bundle, checkpoint: Checkpoint) -> None:
    model, decoder = halve(checkpoint.model), GraphDecoder(half_bundle, threads=1)
    sources = [checkpoint.tokenizer.encode(text) for text in sentences(40)]
    differences = state_differences(model, decoder, sources)
    assert np.median(differences) < 2e-3
    assert differences.max() < 2e-2


@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_bit_equal_in_any_batch(threads: int, half_bundle: Bundle) -> None:
    check_bit_equal_scores(half_bundle, threads)


def test_the_report_has_the_loss_of_precision(half_bundle: Bundle) -> None:
    report = half_bundle.report()
    loss = report["loss_of_precision"]
    assert loss["agreement"] >= 0.98
    assert abs(loss["log_prob_drop"]) < 0.01
    assert loss["steps"] > 1000
    assert report["precision"] == half_bundle.manifest.precision == "float16"


def test_a_float16_bundle_passes_the_verification(half_bundle: Bundle) -> None:
    names = [check.name for check in verify_bundle(half_bundle, threads=1)]
    assert names == ["tokenizer", "golden answers", "alone equals batched"]


def test_the_engine_gives_the_answers_of_the_verifier(half_bundle: Bundle) -> None:
    runner = OrtRunner(half_bundle, provider="cpu", threads=1, max_rows=4)
    decoder = GraphDecoder(half_bundle, threads=1)
    sources = random_sources(4)
    runner.insert(sources, 0)
    fed = [half_bundle.manifest.decoding.start_id] * 4
    found: list[list[tuple[int, float]]] = [[] for _ in sources]
    for position in range(40):  # past the first rung of the cache
        steps = runner.step([RowInput(token, position) for token in fed])
        fed = [step.token for step in steps]
        for row, step in enumerate(steps):
            found[row].append((step.token, step.log_prob))
    for row, right in enumerate(decode_alone(decoder, sources, [40] * 4)):
        assert found[row][: len(right.tokens)] == list(zip(right.tokens, right.log_probs, strict=True))
    (states,) = runner.embed(sources[:1])
    assert states.dtype == np.float32
    assert np.array_equal(states, decoder.encode(sources[:1])["hidden"][0, : len(sources[0])])


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> GraphDecoder:
    """A decoder for sources of up to 256 tokens."""
    return half_graphs(tmp_path_factory.mktemp("long"), random_model(LONG))


class TestMasks:
    """Padding up to the limit, and empty rows."""

    @pytest.mark.parametrize("longest", [181, LONG.max_positions])
    def test_short_texts_beside_a_long_one(self, longest: int, decoder: GraphDecoder, checkpoint: Checkpoint) -> None:
        words = checkpoint.tokenizer.encode(" ".join(["kite boat river"] * 100))
        batch = [checkpoint.tokenizer.encode(""), checkpoint.tokenizer.encode("kite"), words[-longest:]]
        assert [len(source) for source in batch][::2] == [1, longest]
        assert all(np.isfinite(array).all() for array in decoder.encode(batch).values())
        limits = [40] * 3
        together = decoder.decode(batch, limits)
        assert together == decode_alone(decoder, batch, limits)
        assert all(np.isfinite(output.log_probs).all() for output in together)

    def test_empty_rows_are_finite_and_change_no_other_row(self, decoder: GraphDecoder) -> None:
        sources = random_sources(3)
        alone = decode_alone(decoder, sources, [20] * 3)
        padded = decoder.decode([*sources, [], []], [20] * 5)
        assert padded[:3] == alone
        assert all(np.isfinite(output.log_probs).all() for output in padded[3:])

    def test_tokens_equal_float32_up_to_a_narrow_margin(self, decoder: GraphDecoder) -> None:
        compare(decoder, random_model(LONG), random_sources(), margin=0.05)


def compare(decoder: GraphDecoder, model: Transformer, sources: list[list[int]], margin: float) -> None:
    """Each text gives float32's tokens up to its first step with a smaller margin than `margin`."""
    right = greedy(model, tiny_rules(model.config), sources)
    found = decode_alone(decoder, sources, [len(output.tokens) for output in right])
    compared = 0
    for output, wanted in zip(found, right, strict=True):
        sure = next((i for i, found in enumerate(wanted.margins) if found < margin), len(wanted.tokens))
        assert output.tokens[:sure] == wanted.tokens[:sure]
        compared += sure
    assert compared > 4 * len(sources)


class TestOverflow:
    """Activations beyond the range of float16."""

    @pytest.mark.parametrize("config", [TINY, PAPER, GATED], ids=["pre", "post", "t5"])
    def test_a_state_beyond_the_range_keeps_its_tokens(self, config: TransformerConfig, tmp_path: Path) -> None:
        model, sources = random_model(config), random_sources()
        outer = model.get_submodule("encoder.0.feed_forward.outer")
        with torch.no_grad():
            outer.get_parameter("weight").mul_(7.2e4 / peak_of(outer, model, sources))
        assert peak_of(outer, model, sources) > 7e4
        decoder = half_graphs(tmp_path, model)
        assert all(np.isfinite(array).all() for array in decoder.encode(sources).values())
        compare(decoder, model, sources, margin=0.05)

    @pytest.mark.parametrize(("part", "peak"), [("query", 2e4), ("inner", 4e5)])
    def test_a_clamped_product_is_finite_and_its_loss_refused(
        self, part: str, peak: float, checkpoint: Checkpoint, tmp_path: Path
    ) -> None:
        """Queries of 20,000 times a key, and hidden values of 400,000, far exceed float16."""
        model, sources = random_model(dataclasses.replace(TINY, decoder_layers=1)), random_sources()
        for layer in model.encoder:
            linear = layer.get_submodule(f"self_attention.{part}" if part == "query" else f"feed_forward.{part}")
            with torch.no_grad():
                linear.get_parameter("weight").mul_(peak / peak_of(linear, model, sources))
        decoder = half_graphs(tmp_path, model)
        assert all(np.isfinite(array).all() for array in decoder.encode(sources).values())
        outputs = decode_alone(decoder, sources, [24] * len(sources))
        assert all(np.isfinite(output.log_probs).all() for output in outputs)
        rigged = dataclasses.replace(checkpoint, model=model)
        with pytest.raises(VerificationError, match="loss of precision: .* --force accepts any loss"):
            check_loss(decoder, translate_sample(rigged, sentences(20)), LOSSES["float16"], accept=False)
