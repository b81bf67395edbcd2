"""Decoding rules from a folder's JSON files."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.importing.folder import ModelFolder
from dragoman.model.importing.rules import Rules, read_rules

CONFIG = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "num_beams": 6}


def rules(folder: Path, generation: dict[str, Any] | None, config: dict[str, Any] = CONFIG, *ignored: str) -> Rules:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_rules(ModelFolder.open(folder), ignored)


def test_rules_are_read_from_generation_config(tmp_path: Path) -> None:
    settings = {
        "bad_words_ids": [[7], [5]],
        "decoder_start_token_id": 4,
        "eos_token_id": [2, 9],
        "forced_bos_token_id": 6,
        "forced_eos_token_id": 2,
        "max_length": 40,
        "num_beams": 4,
        "pad_token_id": 0,
        "suppress_tokens": [8],
        "transformers_version": "4.30.0",
    }
    assert rules(tmp_path, settings) == Rules((2, 9), 0, 6, 2, (5, 7, 8), 40, None)


def test_rules_fall_back_to_config_json(tmp_path: Path) -> None:
    config = CONFIG | {"forced_eos_token_id": 2, "max_length": 30, "bad_words_ids": [[1]], "d_model": 32}
    assert rules(tmp_path, None, config) == Rules((2,), 1, None, 2, (1,), 30, None)


def test_generation_config_overrides_config_json(tmp_path: Path) -> None:
    config = CONFIG | {"forced_eos_token_id": 2, "no_repeat_ngram_size": 3}
    assert rules(tmp_path, {}, config) == Rules((2,), 1, None, None, (), None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_repeat_ngram_size", 3),
        ("min_length", 56),
        ("repetition_penalty", 1.2),
        ("begin_suppress_tokens", [5]),
        ("sequence_bias", [[[4], 1.0]]),
        ("guidance_scale", 2.0),
        ("force_bos_token_to_be_generated", True),
        ("a_rule_of_tomorrow", True),
    ],
)
def test_an_unsupported_rule_is_refused_by_name_or_ignored(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"generation_config.json: unsupported decoding rules: {name} "):
        rules(tmp_path, {name: value})
    assert rules(tmp_path, {name: value}, CONFIG, name) == rules(tmp_path, {})


@pytest.mark.parametrize(
    "neutral", [{"no_repeat_ngram_size": 0}, {"repetition_penalty": 1.0}, {"min_length": 0}, {"top_k": 50}]
)
def test_a_rule_without_effect_is_accepted(neutral: dict[str, Any], tmp_path: Path) -> None:
    assert rules(tmp_path, neutral) == rules(tmp_path, {})


def test_a_bad_word_of_several_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bad_words_ids must be single tokens, are \[\[4, 5\]\]"):
        rules(tmp_path, {"bad_words_ids": [[4, 5]]})


def test_an_end_token_among_the_bad_words_is_not_suppressed(tmp_path: Path) -> None:
    assert rules(tmp_path, {"bad_words_ids": [[2], [4]]}).suppressed_ids == (4,)


@pytest.mark.parametrize("lost", ["pad_token_id", "eos_token_id"])
def test_padding_and_end_tokens_must_be_set(lost: str, tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != lost}
    with pytest.raises(ValueError, match="pad_token_id and eos_token_id must be set"):
        rules(tmp_path, {}, config)


@pytest.mark.parametrize(
    ("settings", "prompt", "limit"),
    [
        ({}, 1, 64),
        ({}, 2, 63),
        ({"max_length": 20}, 1, 19),
        ({"max_length": 20}, 2, 18),
        ({"max_length": 99}, 1, 64),
        ({"max_new_tokens": 7, "max_length": 20}, 2, 7),
        ({"max_new_tokens": 99}, 2, 63),
        ({"max_length": 1}, 1, 1),
    ],
)
def test_the_longest_output_leaves_room_for_the_prompt(
    settings: dict[str, int], prompt: int, limit: int, tmp_path: Path
) -> None:
    assert rules(tmp_path, settings).max_output_tokens(64, prompt) == limit
