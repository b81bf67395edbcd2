"""Recognition of a folder's family."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.importing import FAMILY_NAMES, family_of, load_any
from tests.support.hugging_face import BART_LIKE, make
from tests.support.tiny import tiny_checkpoint


def described(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(
    ("model_type", "tokenizer_class", "family"),
    [
        ("marian", None, "marian"),
        ("m2m_100", None, "m2m100"),
        ("m2m_100", "M2M100Tokenizer", "m2m100"),
        ("m2m_100", "NllbTokenizerFast", "nllb"),
        ("mbart", "MBartTokenizer", "mbart"),
        ("mbart", "MBart50TokenizerFast", "mbart50"),
        ("bart", None, "bart"),
        ("pegasus", None, "pegasus"),
    ],
)
def test_a_family_is_recognised(model_type: str, tokenizer_class: str | None, family: str, tmp_path: Path) -> None:
    tokenizer = None if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
    assert family_of(described(tmp_path, {"model_type": model_type}, tokenizer)) == family


def test_a_native_checkpoint_is_recognised_and_read(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "tiny")
    assert family_of(tmp_path / "tiny") == "transformer"
    found = load_any(tmp_path / "tiny", "transformer", tmp_path / "tokenizer")
    assert found.config.name == "tiny"
    assert (tmp_path / "tokenizer" / "sentencepiece.model").is_file()


def test_only_the_tokenizer_files_are_copied(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "tiny")
    (tmp_path / "secret").write_text("a private file")
    (tmp_path / "tiny" / "tokenizer" / "notes").symlink_to(tmp_path / "secret")
    (tmp_path / "tiny" / "tokenizer" / "more").mkdir()
    load_any(tmp_path / "tiny", "transformer", tmp_path / "tokenizer")
    assert [path.name for path in (tmp_path / "tokenizer").iterdir()] == ["sentencepiece.model"]


@pytest.mark.parametrize(("config", "fault"), [({"model_type": "whisper"}, "is 'whisper'"), ({}, "is missing")])
def test_an_unknown_family_is_refused_with_the_known_ones(config: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"unknown family: .* {fault}, known are transformer, marian, m2m100, "):
        family_of(described(tmp_path, config))


def test_a_folder_without_config_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config.json: missing"):
        family_of(tmp_path)


def test_an_invalid_config_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ValueError, match=r"config.json: not JSON"):
        family_of(tmp_path)


def test_a_family_may_be_given(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    make(BART_LIKE["mbart50"], folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": None}))
    assert family_of(folder) == "mbart"
    assert load_any(folder, "mbart50", tmp_path / "tokenizer").config.family == "mbart50"


def test_a_family_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"family must be one of {', '.join(FAMILY_NAMES)}, is 'bird'"):
        load_any(tmp_path, "bird", tmp_path / "tokenizer")
