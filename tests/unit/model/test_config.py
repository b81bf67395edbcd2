import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle.rules import DecodingRules
from dragoman.model.config import CheckpointConfig, TransformerConfig

RULES = DecodingRules(start_id=1, end_ids=(2,), pad_id=0, max_source_tokens=100, max_output_tokens=40)
CONFIG = CheckpointConfig(
    name="toy",
    family="transformer",
    source_languages=("en",),
    target_languages=("fr", "fr-CA"),
    architecture=TransformerConfig(60, 60, d_model=32, heads=4, norm_order="pre", max_positions=100),
    decoding=dataclasses.replace(RULES, suppressed_ids=(0, 1, 3), output_factor=1.5, output_margin=4),
)


def load_changed(folder: Path, *path: str, to: Any) -> CheckpointConfig:
    """Load CONFIG's file with another value at `path`."""
    CONFIG.save(folder / "config.json")
    plain = json.loads((folder / "config.json").read_text())
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    (folder / "config.json").write_text(json.dumps(plain))
    return CheckpointConfig.load(folder / "config.json")


def test_saving_and_loading_is_lossless(tmp_path: Path) -> None:
    CONFIG.save(tmp_path / "config.json")
    assert CheckpointConfig.load(tmp_path / "config.json") == CONFIG


def test_the_file_is_readable_json(tmp_path: Path) -> None:
    CONFIG.save(tmp_path / "config.json")
    text = (tmp_path / "config.json").read_text()
    assert json.loads(text)["architecture"]["norm_order"] == "pre"
    assert '\n  "architecture": {\n    "source_vocabulary": 60,' in text


def test_a_config_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.architecture.heads = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("architecture", "heads"), 0, r"architecture.heads: .* greater than or equal to 1 \(is 0\)"),
        (("architecture", "d_ff"), "wide", r"architecture.d_ff: .* valid integer.* \(is 'wide'\)"),
        (("architecture", "dropout"), 1.0, r"architecture.dropout: .* less than 1 \(is 1.0\)"),
        (("architecture", "norm_order"), "middle", r"architecture.norm_order: .*'pre' or 'post' \(is 'middle'\)"),
        (
            ("architecture", "activation"),
            "tanh",
            r"architecture.activation: .*'relu', 'gelu', 'gelu_tanh' or 'swish' \(is 'tanh'\)",
        ),
        (("architecture", "position_offset"), -1, r"architecture.position_offset: .* \(is -1\)"),
        (("architecture", "colour"), "red", r"architecture.colour: Unexpected keyword argument \(is 'red'\)"),
        (("decoding", "end_ids"), [], r"decoding.end_ids: .* at least 1 item"),
        (("decoding", "output_factor"), -0.5, r"decoding.output_factor: .* \(is -0.5\)"),
        (("decoding", "output_margin"), 0, r"decoding.output_margin: .* \(is 0\)"),
        (("decoding", "max_output_tokens"), 0, r"decoding.max_output_tokens: .* \(is 0\)"),
        (("name",), "", r"name: .* at least 1 character"),
        (("target_languages",), [], r"target_languages: .* at least 1 item"),
    ],
)
def test_an_invalid_value_is_reported_with_the_valid_ones(
    tmp_path: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_changed(tmp_path, *path, to=value)
    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("architecture", "heads"), 5, "architecture: d_model must be a multiple of heads, is 32 with 5 heads"),
        (("architecture", "target_vocabulary"), 61, "architecture: shared_embedding needs one vocabulary size"),
        (("decoding", "start_id"), 60, "decoding.start_id must be below the vocabulary's 60, is 60"),
        (("decoding", "end_ids"), [2, 99], "decoding.end_ids must be below the vocabulary's 60, is 99"),
        (("decoding", "pad_id"), 60, "decoding.pad_id must be below the vocabulary's 60, is 60"),
        (("decoding", "suppressed_ids"), [60], "decoding.suppressed_ids must be below the vocabulary's 60, is 60"),
        (("decoding", "forced_end_id"), 60, "decoding.forced_end_id must be below the vocabulary's 60, is 60"),
        (
            ("decoding", "prompt_tokens"),
            62,
            "decoding.max_output_tokens must be at most max_positions, 100 less the 61 tokens before it, is 40",
        ),
        (
            ("decoding", "max_source_tokens"),
            101,
            "decoding.max_source_tokens must be at most max_positions, 100, is 101",
        ),
        (
            ("decoding", "max_output_tokens"),
            101,
            "decoding.max_output_tokens must be at most max_positions, 100, is 101",
        ),
    ],
)
def test_inconsistent_values_are_refused(tmp_path: Path, path: tuple[str, ...], value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_changed(tmp_path, *path, to=value)
    assert "ArgsKwargs" not in str(caught.value)


def test_only_sinusoids_need_an_even_width() -> None:
    with pytest.raises(ValueError, match="d_model must be even for sinusoid positions, is 9"):
        TransformerConfig(60, 60, d_model=9, heads=3)
    assert TransformerConfig(60, 60, d_model=9, heads=3, position_kind="learned").head_width == 3


def test_all_faults_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    CONFIG.save(tmp_path / "config.json")
    plain = json.loads((tmp_path / "config.json").read_text())
    del plain["family"]
    plain["extra"] = 1
    plain["decoding"]["pad_id"] = None
    (tmp_path / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="family") as caught:
        CheckpointConfig.load(tmp_path / "config.json")
    assert "family: Field required" in str(caught.value)
    assert "extra: Unexpected" in str(caught.value)
    assert "decoding.pad_id: Input should be a valid integer (is None)" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_other_content_than_a_config_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json: "):
        CheckpointConfig.load(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("source_tokens", "asked", "limit"),
    [
        (1, None, 5),  # 1.5 × 1 rounded down, plus the margin
        (10, None, 19),
        (24, None, 40),
        (25, None, 40),  # 41 by the source, 40 by the checkpoint
        (10, 7, 7),
        (10, 19, 19),
        (10, 10**9, 19),
        (10, 1, 1),
    ],
)
def test_an_output_is_limited_by_checkpoint_source_and_caller(
    source_tokens: int, asked: int | None, limit: int
) -> None:
    assert CONFIG.decoding.output_limit(source_tokens, asked) == limit


@pytest.mark.parametrize("asked", [0, -1])
def test_a_limit_below_one_token_is_refused(asked: int) -> None:
    with pytest.raises(ValueError, match=f"asked must be at least 1 token, is {asked}"):
        CONFIG.decoding.output_limit(10, asked)


def test_the_presets_are_those_of_the_paper() -> None:
    base, big = TransformerConfig.base(37_000), TransformerConfig.big(37_000)
    for preset, row in ((base, (6, 512, 2048, 8, 64, 0.1)), (big, (6, 1024, 4096, 16, 64, 0.3))):  # table 3
        size = (preset.encoder_layers, preset.d_model, preset.d_ff, preset.heads, preset.head_width, preset.dropout)
        assert size == row
        assert preset.decoder_layers == preset.encoder_layers
        assert (preset.norm_order, preset.activation, preset.final_norm) == ("post", "relu", False)
        assert preset.shared_embedding
        assert preset.tied_output
