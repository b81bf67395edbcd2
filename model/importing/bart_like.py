"""Marian, M2M100, NLLB, BART, mBART and Pegasus: the same Transformer in transformers, with a few differences.

The differences are the fields of `BartLike`; all share the names of tensors.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from dragoman.bundle.tokenizers import Tokenizer
from dragoman.model.checkpoint import Checkpoint, check_prompts
from dragoman.model.config import CheckpointConfig, NormOrder, PositionKind, TransformerConfig
from dragoman.model.importing.family import check_vocabulary
from dragoman.model.importing.folder import ModelFolder, activation
from dragoman.model.importing.rules import read_rules
from dragoman.model.importing.weights import Ledger, Part, as_it_is, build, read_folder
from dragoman.model.transformer import sinusoid_table

ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
FEED_FORWARD = {"feed_forward.inner": "fc1", "feed_forward.outer": "fc2"}
STACKS = ("encoder", "decoder")
LOGITS_BIAS = "final_logits_bias"
ENCODER_LAYER = {"self_residual.norm": "self_attn_layer_norm", "feed_residual.norm": "final_layer_norm"} | FEED_FORWARD
DECODER_LAYER = {"cross_residual.norm": "encoder_attn_layer_norm"} | ENCODER_LAYER
ENCODER_ATTENTIONS = {"self_attention": "self_attn"}
DECODER_ATTENTIONS = ENCODER_ATTENTIONS | {"cross_attention": "encoder_attn"}


@dataclass(frozen=True)
class BartLike:
    """A family: the test for its folders, and its differences in architecture."""

    name: str
    belongs: Callable[[ModelFolder], bool]
    norm_order: NormOrder
    position_kind: PositionKind
    offset: int | None = 0
    """The first token's row in the position table; None for the row after padding's."""
    embedding_norm: bool = False
    suppresses_padding: bool = False
    """Whether padding, which is the decoder's start token here, is never an output, whatever the files say."""

    def recognise(self, folder: ModelFolder) -> bool:
        """See `Family.recognise`."""
        return self.belongs(folder)

    def read(self, folder: ModelFolder, tokenizer: Tokenizer, ignored_rules: Collection[str]) -> Checkpoint:
        """See `Family.read`."""
        rules = read_rules(folder, ignored_rules)
        ledger = Ledger(read_folder(folder.path), str(folder.path))
        prefix = "model." if any(name.startswith("model.") for name in ledger) else ""
        tables = Tables.find(folder, ledger, prefix)
        biased = LOGITS_BIAS in ledger and bool(ledger[LOGITS_BIAS].any())
        size = self._architecture(folder, tables, biased)
        check_vocabulary(folder, tokenizer, size)
        for stack in STACKS:
            ledger.pass_over(f"{prefix}{stack}.version")  # a number in old files from fairseq
        if size.position_kind != "learned":
            first = size.position_offset
            right = sinusoid_table(first + size.max_positions, size.d_model, size.position_kind)
            for name in (f"{prefix}{stack}.embed_positions.{end}" for stack in STACKS for end in ("weight", "weights")):
                ledger.check_table(name, right, first)
        config = CheckpointConfig(
            name=folder.path.resolve().name,
            family=self.name,
            source_languages=tokenizer.source_languages,
            target_languages=tokenizer.target_languages,
            architecture=size,
            decoding=rules.decoding(tokenizer, size.max_positions, suppress_padding=self.suppresses_padding),
        )
        check_prompts(config.decoding, tokenizer, where=str(folder.path))
        return Checkpoint(config, build(size, {**_parts(size, prefix), **tables.parts}, ledger), tokenizer)

    def _architecture(self, folder: ModelFolder, tables: "Tables", biased: bool) -> TransformerConfig:
        source: int = folder.need("vocab_size")
        return TransformerConfig(
            source_vocabulary=source,
            target_vocabulary=source if tables.shared else folder.config.get("decoder_vocab_size") or source,
            d_model=folder.need("d_model"),
            heads=folder.need_same("encoder_attention_heads", "decoder_attention_heads"),
            d_ff=folder.need_same("encoder_ffn_dim", "decoder_ffn_dim"),
            encoder_layers=folder.need("encoder_layers"),
            decoder_layers=folder.need("decoder_layers"),
            max_positions=folder.need("max_position_embeddings"),
            dropout=0.0,
            norm_order=self.norm_order,
            final_norm=self.norm_order == "pre",
            activation=activation(folder, "activation_function"),
            position_kind=self.position_kind,
            # M2M100 counts from the row after padding's.
            position_offset=folder.need("pad_token_id") + 1 if self.offset is None else self.offset,
            scale_embedding=bool(folder.config.get("scale_embedding", False)),
            embedding_norm=self.embedding_norm,
            shared_embedding=tables.shared,
            tied_output=tables.tied,
            output_bias=biased,
        )


@dataclass(frozen=True)
class Tables:
    """The embedding tables of a checkpoint, according to its file and config.json."""

    shared: bool
    """Whether source and target share one table."""
    tied: bool
    """Whether the output projection is the target's table."""
    parts: Mapping[str, Part]

    @classmethod
    def find(cls, folder: ModelFolder, ledger: Ledger, prefix: str) -> "Tables":
        """Determine which names of embeddings denote one tensor. Untied stacks with equal tables share one here."""
        own = (f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight")
        common, output = f"{prefix}shared.weight", "lm_head.weight"
        source, target, projection = (
            "source_embedding.tokens.weight",
            "target_embedding.tokens.weight",
            "projection.weight",
        )
        if folder.config.get("tie_word_embeddings", True):
            if folder.config.get("share_encoder_decoder_embeddings", True):
                return cls(True, True, {source: Part((common, *own, output))})
            return cls(False, True, {source: Part((own[0],)), target: Part((own[1], output))})
        if not all(name in ledger for name in own):
            return cls(True, False, {source: Part((common, *own)), projection: Part((output,))})
        ledger.pass_over(common)  # transformers ignores it as well
        if torch.equal(ledger[own[0]], ledger[own[1]]):
            return cls(True, False, {source: Part(own), projection: Part((output,))})
        return cls(False, False, {source: Part((own[0],)), target: Part((own[1],)), projection: Part((output,))})


def _parts(size: TransformerConfig, prefix: str) -> dict[str, Part]:
    """The source of each tensor of our model, except embeddings."""
    names = {"projection.bias": LOGITS_BIAS}
    for stack, embedding, count, layer, attentions in (
        ("encoder", "source_embedding", size.encoder_layers, ENCODER_LAYER, ENCODER_ATTENTIONS),
        ("decoder", "target_embedding", size.decoder_layers, DECODER_LAYER, DECODER_ATTENTIONS),
    ):
        theirs = f"{prefix}{stack}"
        names[f"{embedding}.positions"] = f"{theirs}.embed_positions.weight"
        names |= _both(f"{embedding}.norm", f"{theirs}.layernorm_embedding")
        names |= _both(f"{stack}_norm", f"{theirs}.layer_norm")
        for index in range(count):
            for ours, other in layer.items():
                names |= _both(f"{stack}.{index}.{ours}", f"{theirs}.layers.{index}.{other}")
            for ours, other in attentions.items():
                for part, projection in ATTENTION.items():
                    names |= _both(f"{stack}.{index}.{ours}.{part}", f"{theirs}.layers.{index}.{other}.{projection}")
    return {ours: Part((other,), torch.squeeze if other == LOGITS_BIAS else as_it_is) for ours, other in names.items()}


def _both(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for kind in ("weight", "bias")}


def _is_bart(folder: ModelFolder) -> bool:
    return folder.model_type == "bart"


def _is_marian(folder: ModelFolder) -> bool:
    return folder.model_type == "marian"


def _is_m2m100(folder: ModelFolder) -> bool:
    return folder.model_type == "m2m_100" and not _is_nllb(folder)


def _is_nllb(folder: ModelFolder) -> bool:
    return folder.model_type == "m2m_100" and folder.tokenizer_class.startswith("Nllb")


def _is_mbart(folder: ModelFolder) -> bool:
    return folder.model_type == "mbart" and not _is_mbart50(folder)


def _is_mbart50(folder: ModelFolder) -> bool:
    return folder.model_type == "mbart" and folder.tokenizer_class.startswith("MBart50")


def _is_pegasus(folder: ModelFolder) -> bool:
    return folder.model_type == "pegasus"


FAMILIES = (
    BartLike("marian", _is_marian, "post", "sinusoid_halves", suppresses_padding=True),
    BartLike("m2m100", _is_m2m100, "pre", "sinusoid_halves_even", offset=None),
    BartLike("nllb", _is_nllb, "pre", "sinusoid_halves_even", offset=None),
    BartLike("bart", _is_bart, "post", "learned", offset=2, embedding_norm=True),
    BartLike("mbart", _is_mbart, "pre", "learned", offset=2, embedding_norm=True),
    BartLike("mbart50", _is_mbart50, "pre", "learned", offset=2, embedding_norm=True),
    BartLike("pegasus", _is_pegasus, "pre", "sinusoid_halves"),
)
