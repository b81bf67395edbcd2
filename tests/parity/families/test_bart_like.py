"""Imported models against transformers, tensor for tensor."""

from pathlib import Path

import pytest
import torch

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.importing import FAMILIES, family_of
from dragoman.model.importing.folder import ModelFolder
from tests.hugging_face import BART_LIKE, POSITIONS, BareTokenizer, make_model, save

WIDTHS = (1, 7, 19, POSITIONS)


def read(folder: Path) -> Checkpoint:
    found = ModelFolder.open(folder)
    (family,) = [each for each in FAMILIES if each.name == family_of(folder)]
    source = found.config["vocab_size"]
    target = source
    if not found.config.get("share_encoder_decoder_embeddings", True):
        target = found.config["decoder_vocab_size"]
    start = found.config["decoder_start_token_id"]
    return family.read(found, BareTokenizer(source, target, (start,)), ())


@pytest.mark.parametrize("name", BART_LIKE)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = make_model(BART_LIKE[name])
    checkpoint = read(save(model, tmp_path / "tiny"))
    size, rules = checkpoint.config.architecture, checkpoint.config.decoding
    assert checkpoint.config.family == BART_LIKE[name].family
    generator = torch.Generator().manual_seed(1)
    for width in WIDTHS:
        lengths = torch.tensor([width, max(1, width // 2), 1])
        visible = torch.arange(width) < lengths[:, None]
        # transformers counts M2M100's positions by the tokens that are no padding, so none stands within a text.
        source = torch.randint(3, size.source_vocabulary - 1, visible.shape, generator=generator)
        source[~visible] = rules.pad_id
        target = torch.randint(3, size.target_vocabulary - 1, (3, min(40, POSITIONS)), generator=generator)
        with torch.no_grad():
            right = model(input_ids=source, attention_mask=visible.long(), decoder_input_ids=target).logits
            found = checkpoint.model(source, lengths, target)
        assert right.std() > 1
        assert (found - right).abs().max() < 1e-4, width
