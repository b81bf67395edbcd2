"""The graphs of imported checkpoints against transformers itself."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.quality.families import open_graphs
from dragoman.bundle.graph_decoder import GraphDecoder
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import pad
from dragoman.model.importing import load_any
from tests.support.hugging_face import BART_LIKE, generate, make, prompted
from tests.support.tiny import sentences

STEPS = 40


@pytest.fixture(scope="module", params=["marian, two vocabularies", "nllb", "bart"])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Checkpoint, GraphDecoder]:
    """transformers' model, ours, and its graphs."""
    variant, folder = BART_LIKE[request.param], tmp_path_factory.mktemp("exported")
    model = make(variant, folder / "checkpoint")
    checkpoint = load_any(folder / "checkpoint", variant.family, folder / "tokenizer")
    return model, checkpoint, open_graphs(checkpoint, "float32", folder / "graphs")


def test_logits_of_cached_steps_equal_transformers(exported: tuple[Any, Checkpoint, GraphDecoder]) -> None:
    model, checkpoint, decoder = exported
    size, rules = checkpoint.config.architecture, checkpoint.config.decoding
    allowed = np.setdiff1d(np.arange(size.target_vocabulary), rules.suppressed_ids)
    rng = np.random.default_rng(0)
    for widths in ([1], [19, 7, 1]):
        sources = [rng.integers(4, size.source_vocabulary - 1, width).tolist() for width in widths]
        targets = rng.integers(4, size.target_vocabulary - 1, (len(widths), STEPS))
        ids, lengths = pad(sources, rules.pad_id)
        visible = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        fed = torch.tensor([[rules.start_id, *row[:-1]] for row in targets.tolist()])
        with torch.no_grad():
            right = model(input_ids=ids, attention_mask=visible, decoder_input_ids=fed).logits.numpy()
        found = np.stack([step["logits"] for step in decoder.force(sources, targets.tolist())], axis=1)
        assert np.abs(found - right)[..., allowed].max() < 2e-4


def test_tokens_in_a_mixed_batch_equal_transformers(
    exported: tuple[Any, Checkpoint, GraphDecoder],
) -> None:
    model, checkpoint, decoder = exported
    sources, prompts = prompted(checkpoint, sentences(12))
    most = checkpoint.config.decoding.max_output_tokens
    found = decoder.decode(sources, [most] * len(sources), prompts)
    equal = [
        output.tokens == generate(model, source, prompt, most)
        for source, prompt, output in zip(sources, prompts, found, strict=True)
    ]
    assert sum(equal) >= 10  # noise may decide between two words that are nearly as likely
    alone = [decoder.decode([source], [most], [prompt])[0] for source, prompt in zip(sources, prompts, strict=True)]
    assert [output.tokens for output in alone] == [output.tokens for output in found]
