"""Imported models against transformers: logits and greedy tokens."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import greedy
from dragoman.model.importing import family_of, load_any
from tests.support.hugging_face import BART_LIKE, POSITIONS, generate, make, prompted
from tests.support.tiny import sentences

WIDTHS = (1, 7, 19, POSITIONS)
TEXTS = 16


@pytest.fixture(scope="module", params=BART_LIKE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Checkpoint]:
    """transformers' model, and ours."""
    variant = BART_LIKE[request.param]
    folder = tmp_path_factory.mktemp("family") / "checkpoint"
    model = make(variant, folder)
    assert family_of(folder) == variant.family
    return model, load_any(folder, variant.family, folder.with_name("tokenizer"))


def test_logits_equal_transformers(pair: tuple[Any, Checkpoint]) -> None:
    """In float64, so that rounding does not matter."""
    model, ours = copy.deepcopy(pair[0]).double(), copy.deepcopy(pair[1].model).double()
    size, rules = pair[1].config.architecture, pair[1].config.decoding
    generator = torch.Generator().manual_seed(1)
    for width in WIDTHS:
        lengths = torch.tensor([width, max(1, width // 2), 1])
        visible = torch.arange(width) < lengths[:, None]
        # No padding token within a text: transformers skips it when it counts M2M100's positions.
        source = torch.randint(4, size.source_vocabulary - 1, visible.shape, generator=generator)
        source[~visible] = rules.pad_id
        target = torch.randint(4, size.target_vocabulary - 1, (3, 40), generator=generator)
        with torch.no_grad():
            right = model(input_ids=source, attention_mask=visible.long(), decoder_input_ids=target).logits
            found = ours(source, lengths, target)
        assert right.std() > 0.5
        assert (found - right).abs().max() < 1e-9, width


def test_greedy_tokens_equal_generate(pair: tuple[Any, Checkpoint]) -> None:
    model, checkpoint = pair
    sources, prompts = prompted(checkpoint, sentences(TEXTS))
    most = checkpoint.config.decoding.max_output_tokens
    found = greedy(checkpoint.model, checkpoint.config.decoding, sources, [most] * len(sources), prompts)
    for source, prompt, output in zip(sources, prompts, found, strict=True):
        right = generate(model, source, prompt, most)
        sure = next((step for step, margin in enumerate(output.margins) if margin < 1e-3), len(output.tokens))
        assert output.tokens[:sure] == right[:sure]
        assert sure < len(output.tokens) or output.tokens == right
    assert sum(len(set(output.tokens)) for output in found) >= 8 * len(found)


@pytest.mark.parametrize("name", ["marian", "bart", "nllb"])
def test_decoding_rules_of_the_files_are_applied(name: str, tmp_path: Path) -> None:
    rules = {"suppress_tokens": [8, 9, 10], "forced_eos_token_id": 0 if name == "marian" else 2, "max_length": 14}
    rules["forced_bos_token_id"] = 102 if name == "nllb" else 7  # for nllb, its only target language
    model = make(BART_LIKE[name], tmp_path / name, rules)
    checkpoint = load_any(tmp_path / name, BART_LIKE[name].family, tmp_path / "tokenizer")
    sources, prompts = prompted(checkpoint, sentences(12))
    assert {prompt[1] for prompt in prompts} == {rules["forced_bos_token_id"]}
    most = checkpoint.config.decoding.max_output_tokens
    found = greedy(checkpoint.model, checkpoint.config.decoding, sources, [most] * len(sources), prompts)
    for source, output in zip(sources, found, strict=True):
        right = model.generate(input_ids=torch.tensor([source]), num_beams=1, do_sample=False)[0].tolist()
        sure = next((step for step, margin in enumerate(output.margins) if margin < 1e-3), len(output.tokens))
        assert output.tokens[:sure] == tuple(right[2:])[:sure]
    assert any(output.finish == "length" for output in found)
