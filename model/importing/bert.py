"""BERT and RoBERTa, also in the form of sentence-transformers: encoders without a decoder, for text embeddings.

BERT adds a type embedding to each token, which is always the first one for a single text. It is therefore folded into
the positions.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import Tensor

from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import UNDETERMINED, Tokenizer
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import CheckpointConfig, TransformerConfig
from dragoman.model.importing.family import check_vocabulary
from dragoman.model.importing.folder import CONFIG_FILE, ModelFolder, activation
from dragoman.model.importing.sentence import SentenceRules, read_sentence_rules
from dragoman.model.importing.weights import Ledger, Part, build, read_folder

UNUSED = ("pooler.", "cls.", "lm_head.", "embeddings.position_ids")
"""Prefixes of tensors that do not affect the states: heads for training tasks, and a table of 0, 1, 2, ..."""

LAYER = {
    "self_attention.query": "attention.self.query",
    "self_attention.key": "attention.self.key",
    "self_attention.value": "attention.self.value",
    "self_attention.output": "attention.output.dense",
    "self_residual.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_residual.norm": "output.LayerNorm",
}


@dataclass(frozen=True)
class Bert:
    """A family of encoders."""

    name: str
    model_types: Collection[str]
    """Its names in config.json."""
    prefix: str
    """Optional prefix of its tensors' names."""
    pad_id: int
    """The padding token if config.json does not set one."""
    counts_from_padding: bool
    """Whether the first token's row in the position table is the one after padding's, instead of the first."""

    def recognise(self, folder: ModelFolder) -> bool:
        """See `Family.recognise`."""
        return folder.model_type in self.model_types

    def read(self, folder: ModelFolder, tokenizer: Tokenizer, ignored_rules: Collection[str]) -> Checkpoint:
        """See `Family.read`."""
        _check(folder)
        sentence = read_sentence_rules(folder.path)
        ledger = Ledger(read_folder(folder.path), str(folder.path))
        prefix = self.prefix if any(name.startswith(self.prefix) for name in ledger) else ""
        for name in ledger:
            if name.removeprefix(prefix).startswith(UNUSED):
                ledger.pass_over(name)
        pad_id: int = folder.config.get("pad_token_id", self.pad_id)
        size = _architecture(folder, pad_id + 1 if self.counts_from_padding else 0)
        check_vocabulary(folder, tokenizer, size)
        config = CheckpointConfig(
            name=folder.path.resolve().name,
            family=self.name,
            source_languages=tokenizer.source_languages or (UNDETERMINED,),
            target_languages=(),
            architecture=size,
            decoding=DecodingRules.none(pad_id, _max_tokens(size, sentence)),
            embedding=sentence.embedding,
        )
        return Checkpoint(config, build(size, _parts(size, prefix, ledger), ledger), tokenizer)


def _check(folder: ModelFolder) -> None:
    where = folder.path / CONFIG_FILE
    for key, right in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        if folder.config.get(key, right) != right:
            raise ValueError(f"{where}: {key} must be {right!r}, is {folder.config[key]!r}")


def _max_tokens(size: TransformerConfig, sentence: SentenceRules) -> int:
    limit = sentence.max_tokens
    return size.max_positions if limit is None else min(limit, size.max_positions)


def _architecture(folder: ModelFolder, offset: int) -> TransformerConfig:
    vocabulary: int = folder.need("vocab_size")
    return TransformerConfig(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        d_model=folder.need("hidden_size"),
        heads=folder.need("num_attention_heads"),
        d_ff=folder.need("intermediate_size"),
        encoder_layers=folder.need("num_hidden_layers"),
        decoder_layers=0,
        max_positions=folder.need("max_position_embeddings") - offset,
        dropout=0.0,
        norm_epsilon=folder.config.get("layer_norm_eps", 1e-12),
        activation=activation(folder, "hidden_act"),
        position_kind="learned",
        position_offset=offset,
        scale_embedding=False,
        embedding_norm=True,
    )


def _parts(size: TransformerConfig, prefix: str, ledger: Ledger) -> dict[str, Part]:
    """The source of each tensor of our model."""
    theirs = f"{prefix}embeddings"
    parts = {
        "source_embedding.tokens.weight": Part((f"{theirs}.word_embeddings.weight",)),
        "source_embedding.positions": Part(
            (f"{theirs}.position_embeddings.weight",), _plus_first(ledger, f"{theirs}.token_type_embeddings.weight")
        ),
    }
    names = {"source_embedding.norm": f"{theirs}.LayerNorm"}
    for index in range(size.encoder_layers):
        names |= {f"encoder.{index}.{ours}": f"{prefix}encoder.layer.{index}.{name}" for ours, name in LAYER.items()}
    for kind in ("weight", "bias"):
        parts |= {f"{ours}.{kind}": Part((f"{name}.{kind}",)) for ours, name in names.items()}
    return parts


def _plus_first(ledger: Ledger, name: str) -> Callable[[Tensor], Tensor]:
    """A function that adds the first row of the tensor `name`, if it exists, to each row of a table."""
    if name not in ledger:
        return lambda table: table
    row = ledger[name][0].float()
    return lambda table: table.float() + row


FAMILIES = (
    Bert("bert", ("bert",), "bert.", pad_id=0, counts_from_padding=False),
    Bert("roberta", ("roberta", "xlm-roberta", "camembert"), "roberta.", pad_id=1, counts_from_padding=True),
)
