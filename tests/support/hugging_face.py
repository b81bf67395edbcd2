"""Tiny random checkpoints of other families, made by transformers, which is the reference of their tests.

The tokenizers are learned from random sentences, and written in the files of each family.
"""

import functools
import io
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import torch
import transformers
from torch import nn

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.importing import family_of, load_any
from tests.support.tiny import sentences

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
"""The default configuration of all these checkpoints."""

Settings = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One kind of checkpoint of a family."""

    family: str
    model: str
    """The model's class in transformers, from whose name that of its configuration follows."""
    write_tokenizer: Callable[[Path], Settings]
    """Writes the tokenizer's files into a folder, and returns the matching settings of config.json."""
    settings: Mapping[str, Any]
    """Differences from `SHAPE`."""
    seed: int = 0
    """A seed for which outputs have at least 8 different tokens on average."""


def make(variant: Variant, folder: Path, generation: Mapping[str, Any] | None = None) -> Any:
    """Let transformers write a checkpoint's folder, with these decoding rules. Returns transformers' model.

    The model never chooses padding, after which transformers would miscount M2M100's positions. It is in eval mode, and
    every weight matters: no bias is 0, no norm is the identity.
    """
    folder.mkdir(parents=True)
    kind = variant.model.removesuffix("ForConditionalGeneration").removesuffix("MTModel") + "Config"
    config = getattr(transformers, kind)(**{**SHAPE, **variant.write_tokenizer(folder), **variant.settings})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(variant.seed)
        model = getattr(transformers, variant.model)(config).eval()
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias" or isinstance(module, nn.LayerNorm):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, parameter in model.named_parameters():
            if "embed_positions" in name and parameter.requires_grad:
                parameter.mul_(5)
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(1.5 if variant.family == "marian" else 1.2)
            elif name.endswith("encoder_attn.out_proj.weight"):
                parameter.mul_(0.3)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.5)
        _vary_outputs(model)
    rules = {"bad_words_ids": [[config.pad_token_id]], **(generation or {})}
    for name, value in rules.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return model


def import_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint's folder by its recognised family."""
    with tempfile.TemporaryDirectory() as scratch:
        return load_any(folder, family_of(folder), Path(scratch) / "tokenizer")


def _vary_outputs(model: Any) -> None:
    """Keep the model from repeating one token, and let it end sometimes."""
    # With a tied embedding and positive gains in the last norm, a token's own logit would always be largest.
    decoder = model.get_decoder()
    last = decoder.layer_norm if hasattr(decoder, "layer_norm") else decoder.layers[-1].final_layer_norm
    nn.init.normal_(last.weight, std=1.0)
    nn.init.normal_(last.bias, std=0.1)
    words, end = model.get_output_embeddings().weight, model.config.eos_token_id
    source = torch.randint(4, model.config.vocab_size - 1, (64, 12))
    target = torch.randint(4, len(words) - 1, (64, POSITIONS - 2))
    for _ in range(4):  # the embedding may be tied, so each round changes the measurements of the next
        hidden = model.base_model(input_ids=source, decoder_input_ids=target).last_hidden_state.flatten(0, 1)
        mean = hidden.mean(dim=0)
        # Neither the mean over all steps nor the norm of an embedding may determine the token.
        words.sub_(torch.outer(words @ mean, mean) / (mean @ mean))
        words.mul_(words.norm(dim=1).mean() / words.norm(dim=1, keepdim=True).clamp_min(1e-3))
        logits = hidden @ words.T
        words[end].div_((logits[:, end] / logits.max(dim=1).values).quantile(0.97))


def prompted(checkpoint: Checkpoint, texts: Sequence[str]) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """Source ids and prompts of texts, which take turns among the tokenizer's languages."""
    tokenizer = checkpoint.tokenizer
    sources, targets = tokenizer.source_languages, tokenizer.target_languages
    pairs = [(sources[each % len(sources)], targets[(each + 1) % len(targets)]) for each in range(len(texts))]
    return (
        [tokenizer.encode(text, *languages) for text, languages in zip(texts, pairs, strict=True)],
        [tokenizer.prompt(target) for _, target in pairs],
    )


def generate(model: Any, source: Sequence[int], prompt: Sequence[int], most: int) -> tuple[int, ...]:
    """The output of transformers for a source, at most `most` tokens, without the prompt."""
    output = model.generate(
        input_ids=torch.tensor([source]),
        attention_mask=torch.ones(1, len(source), dtype=torch.long),
        num_beams=1,
        do_sample=False,
        decoder_start_token_id=prompt[0],
        forced_bos_token_id=prompt[1] if len(prompt) > 1 else None,
        max_length=len(prompt) + most,
    )
    return tuple(output[0].tolist()[len(prompt) :])


# --- the files of each family's tokenizer


def marian(folder: Path) -> Settings:
    """One vocabulary, with ids in another order than the model's."""
    return _marian(folder, ())


def marian_of_two_targets(folder: Path) -> Settings:
    """Like OPUS-MT models of several languages: the text begins with its target."""
    return _marian(folder, (">>fra<<", ">>deu<<"))


def _marian(folder: Path, tags: tuple[str, ...]) -> Settings:
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(_pieces(100))
    names = _shuffled(_names(_pieces(100)))
    ids = _ids(("</s>", "<unk>", *names, *tags, "<pad>"))
    _write(folder / "vocab.json", ids)
    _write(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "fr", "separate_vocabs": False})
    return _marian_settings(len(ids), len(ids))


def marian_of_two_vocabularies(folder: Path) -> Settings:
    """Separate vocabularies, of which the target's is larger."""
    sizes = []
    for side, count, name in (("source", 90, "vocab.json"), ("target", 110, "target_vocab.json")):
        (folder / f"{side}.spm").write_bytes(_pieces(count))
        ids = _ids(("</s>", "<unk>", "<pad>", *_shuffled(_names(_pieces(count)))))
        _write(folder / name, ids)
        sizes.append(len(ids))
    _write(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "fr", "separate_vocabs": True})
    return {**_marian_settings(*sizes), "pad_token_id": 2, "decoder_start_token_id": 2}


def _marian_settings(source: int, target: int) -> Settings:
    return {
        "vocab_size": source,
        "decoder_vocab_size": target,
        "pad_token_id": source - 1,
        "decoder_start_token_id": source - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }


def m2m100(folder: Path) -> Settings:
    """A vocabulary, followed by the languages built into transformers."""
    (folder / "sentencepiece.bpe.model").write_bytes(_pieces(100))
    ids = _ids(("<s>", "<pad>", "</s>", "<unk>", *_shuffled(_names(_pieces(100)))))
    _write(folder / "vocab.json", ids)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})
    return {"vocab_size": len(ids) + 108}


def nllb(folder: Path) -> Settings:
    """Four control tokens, the pieces, the languages."""
    return _fairseq(folder, "NllbTokenizer", ("eng_Latn", "fra_Latn", "deu_Latn", "zho_Hans"))


def mbart(folder: Path) -> Settings:
    """The layout of `nllb` with mBART's names of languages."""
    return _fairseq(folder, "MBartTokenizer", ("en_XX", "fr_XX", "de_DE"))


def mbart50(folder: Path) -> Settings:
    """The layout of `mbart`, with another order of tokens in a text."""
    return _fairseq(folder, "MBart50Tokenizer", ("en_XX", "fr_XX", "de_DE"))


def _fairseq(folder: Path, kind: str, tags: tuple[str, ...]) -> Settings:
    (folder / "sentencepiece.bpe.model").write_bytes(_pieces(100))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": kind, "additional_special_tokens": list(tags)})
    return {"vocab_size": 1 + 100 + len(tags) + 1}


def bart(folder: Path) -> Settings:
    """A byte-pair vocabulary."""
    learner = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learner.train_from_iterator(sentences(300, seed=99), vocab_size=320, show_progress=False, special_tokens=special)
    learner.save_model(str(folder))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "BartTokenizer"})
    return {"vocab_size": learner.get_vocab_size()}


def pegasus(folder: Path) -> Settings:
    """Pieces after 103 reserved ids."""
    (folder / "spiece.model").write_bytes(_pieces(100, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PegasusTokenizer"})
    ids = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
    return {"vocab_size": 103 + 100, **ids}


@functools.cache
def _pieces(count: int, *, unk_id: int = 0, bos_id: int = 1, eos_id: int = 2, pad_id: int = -1) -> bytes:
    """A SentencePiece model of `count` pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(300, seed=99)),
        model_writer=model,
        vocab_size=count,
        normalization_rule_name="nmt_nfkc",
        pad_id=pad_id,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
        minloglevel=2,
    )
    return model.getvalue()


def _names(model: bytes) -> list[str]:
    """The text pieces of a model."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    numbers = range(pieces.vocab_size())
    return [pieces.id_to_piece(each) for each in numbers if not (pieces.is_control(each) or pieces.is_unknown(each))]


def _shuffled(names: list[str]) -> list[str]:
    return random.Random(0).sample(names, len(names))


def _ids(names: tuple[str, ...]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


# --- variants

SEQ2SEQ = "ForConditionalGeneration"

BART_LIKE = {
    "marian": Variant(
        "marian", "MarianMTModel", marian, {"activation_function": "swish", "scale_embedding": True}, seed=3
    ),
    "marian, several targets": Variant(
        "marian", "MarianMTModel", marian_of_two_targets, {"scale_embedding": True}, seed=55
    ),
    "marian, two vocabularies": Variant(
        "marian",
        "MarianMTModel",
        marian_of_two_vocabularies,
        {"share_encoder_decoder_embeddings": False, "scale_embedding": True},
        seed=10,
    ),
    "marian, untied": Variant(
        "marian", "MarianMTModel", marian, {"tie_word_embeddings": False, "scale_embedding": True}
    ),
    "m2m100": Variant("m2m100", f"M2M100{SEQ2SEQ}", m2m100, {}, seed=1),
    "m2m100, untied": Variant("m2m100", f"M2M100{SEQ2SEQ}", m2m100, {"tie_word_embeddings": False}),
    "nllb": Variant("nllb", f"M2M100{SEQ2SEQ}", nllb, {}),
    "bart": Variant("bart", f"Bart{SEQ2SEQ}", bart, {}, seed=2),
    "bart, untied": Variant("bart", f"Bart{SEQ2SEQ}", bart, {"tie_word_embeddings": False}, seed=1),
    "mbart": Variant("mbart", f"MBart{SEQ2SEQ}", mbart, {"scale_embedding": True, "activation_function": "gelu_new"}),
    "mbart50": Variant("mbart50", f"MBart{SEQ2SEQ}", mbart50, {"scale_embedding": True}, seed=2),
    "pegasus": Variant("pegasus", f"Pegasus{SEQ2SEQ}", pegasus, {"activation_function": "relu"}),
}
"""All variants of the families in `dragoman.model.importing.bart_like`."""
