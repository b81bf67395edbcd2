"""Tiny random checkpoints of other families, made by transformers itself, which is the reference of their tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 120
POSITIONS = 64

SHAPE = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "init_std": 0.3,
}
"""What all checkpoints here have in common, unless their family differs."""

MARIAN = {"pad_token_id": VOCABULARY - 1, "decoder_start_token_id": VOCABULARY - 1, "eos_token_id": 0}
PEGASUS = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}


@dataclass(frozen=True)
class Variant:
    """One kind of checkpoint of a family."""

    family: str
    model: str
    """The model's class in transformers; its config's is called alike."""
    settings: Mapping[str, Any]
    """Departures from `SHAPE`."""

    @property
    def config(self) -> Any:
        """transformers' configuration for it."""
        kind = self.model.removesuffix("ForConditionalGeneration").removesuffix("MTModel") + "Config"
        return getattr(transformers, kind)(**{"vocab_size": VOCABULARY, **SHAPE, **self.settings})


BART_LIKE = {
    "marian": Variant("marian", "MarianMTModel", MARIAN | {"activation_function": "swish", "scale_embedding": True}),
    "marian, two vocabularies": Variant(
        "marian",
        "MarianMTModel",
        MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY + 20},
    ),
    "marian, untied": Variant("marian", "MarianMTModel", MARIAN | {"tie_word_embeddings": False}),
    "m2m100": Variant("m2m100", "M2M100ForConditionalGeneration", {}),
    "m2m100, untied": Variant("m2m100", "M2M100ForConditionalGeneration", {"tie_word_embeddings": False}),
    "bart": Variant("bart", "BartForConditionalGeneration", {}),
    "bart, untied": Variant("bart", "BartForConditionalGeneration", {"tie_word_embeddings": False}),
    "mbart": Variant(
        "mbart", "MBartForConditionalGeneration", {"scale_embedding": True, "activation_function": "gelu_new"}
    ),
    "pegasus": Variant("pegasus", "PegasusForConditionalGeneration", PEGASUS | {"activation_function": "relu"}),
}


def make_model(variant: Variant, seed: int = 0) -> Any:
    """A transformers model in eval mode whose every weight counts: no bias is 0, no norm is the identity."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, variant.model)(variant.config).eval()
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias" or isinstance(module, nn.LayerNorm):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        bias = getattr(model, "final_logits_bias", None)
        if bias is not None:
            bias.normal_()
    return model


def save(model: Any, folder: Path, generation: Mapping[str, Any] | None = None) -> Path:
    """Write a folder as transformers does, with these rules of decoding beside its own."""
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class BareTokenizer:
    """As much of a tokenizer as an importer asks for: sizes and one prompt."""

    vocabulary: int
    target_vocabulary: int
    start: tuple[int, ...]
    source_languages: tuple[str, ...] = ()
    target_languages: tuple[str, ...] = ()
    native_codes: Mapping[str, str] = field(default_factory=dict)
    control_ids: tuple[int, ...] = ()
    closing_tokens: int = 1

    def encode(self, text: str, source_language: str = "", target_language: str = "") -> list[int]:
        raise NotImplementedError

    def encode_pieces(self, text: str, source_language: str = "", target_language: str = "") -> list[Any]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def prompt(self, target_language: str = "") -> tuple[int, ...]:
        return self.start
