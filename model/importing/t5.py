"""T5 and mT5, both the original of 2020 and v1.1 with its gated feed-forward network.

Two differences from the paper are folded into the weights, at no later cost. T5 does not scale scores, so queries are
multiplied by the factor by which our model divides them. If output and embedding share one table, T5 scales the last
states before the projection; here the last normalisation does that.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import Tensor

from dragoman.bundle.tokenizers import UNDETERMINED, Tokenizer
from dragoman.model.checkpoint import Checkpoint, check_prompts
from dragoman.model.config import Activation, CheckpointConfig, TransformerConfig
from dragoman.model.importing.family import check_vocabulary
from dragoman.model.importing.folder import ACTIVATIONS, CONFIG_FILE, ModelFolder
from dragoman.model.importing.rules import Rules, read_rules
from dragoman.model.importing.weights import Ledger, Part, as_it_is, build, read_folder

POSITIONS = 512
"""The length of training texts; the model itself sets no limit."""

GATED = "gated-"

SHARED, OUTPUT = "shared.weight", "lm_head.weight"
EMBEDDINGS = (SHARED, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""A leftover in the first checkpoints, which was never used."""

ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}


@dataclass(frozen=True)
class T5:
    """A family: T5, or the multilingual mT5, which never scales its last states."""

    name: str
    scales: bool
    """Whether a checkpoint may scale its last states."""

    def recognise(self, folder: ModelFolder) -> bool:
        """See `Family.recognise`."""
        return folder.model_type == self.name

    def read(self, folder: ModelFolder, tokenizer: Tokenizer, ignored_rules: Collection[str]) -> Checkpoint:
        """See `Family.read`."""
        rules = read_rules(folder, ignored_rules)
        ledger = Ledger(read_folder(folder.path), str(folder.path))
        ledger.pass_over(UNUSED)
        scaled = self.scales and _scales_outputs(folder)
        size = _architecture(folder, rules, tied=_is_tied(ledger, scaled))
        check_vocabulary(folder, tokenizer, size)
        config = CheckpointConfig(
            name=folder.path.resolve().name,
            family=self.name,
            source_languages=tokenizer.source_languages or (UNDETERMINED,),
            target_languages=tokenizer.target_languages or (UNDETERMINED,),
            architecture=size,
            decoding=rules.decoding(tokenizer, size.max_positions),
        )
        check_prompts(config.decoding, tokenizer, where=str(folder.path))
        return Checkpoint(config, build(size, _parts(size, scaled), ledger), tokenizer)


def _scales_outputs(folder: ModelFolder) -> bool:
    """Explicit since transformers 5; before, implied by a table shared between output and embedding."""
    scaled = folder.config.get("scale_decoder_outputs")
    return folder.config.get("tie_word_embeddings") is not False if scaled is None else bool(scaled)


def _is_tied(ledger: Ledger, scaled: bool) -> bool:
    """Whether output and embedding share one table.

    Some v1.1 configurations deny it although the file has no output table; others claim it although the file has one.
    """
    if scaled or OUTPUT not in ledger:
        return True
    shared = next((ledger[name] for name in EMBEDDINGS if name in ledger), None)
    return shared is not None and ledger[OUTPUT].equal(shared)


def _architecture(folder: ModelFolder, rules: Rules, tied: bool) -> TransformerConfig:
    vocabulary: int = folder.need("vocab_size")
    layers: int = folder.need("num_layers")
    kind = str(folder.config.get("feed_forward_proj", "relu"))
    return TransformerConfig(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        d_model=folder.need("d_model"),
        heads=folder.need("num_heads"),
        key_width=folder.need("d_kv"),
        d_ff=folder.need("d_ff"),
        encoder_layers=layers,
        decoder_layers=folder.config.get("num_decoder_layers") or layers,
        max_positions=max(folder.config.get("n_positions") or POSITIONS, rules.max_length or 0),
        dropout=0.0,
        norm_order="pre",
        final_norm=True,
        norm_kind="rms",
        norm_epsilon=folder.config.get("layer_norm_epsilon", 1e-6),
        activation=_activation(folder, kind),
        gated=kind.startswith(GATED),
        biases=False,
        position_kind="relative",
        relative_buckets=folder.need("relative_attention_num_buckets"),
        relative_distance=folder.config.get("relative_attention_max_distance", 128),
        scale_embedding=False,
        tied_output=tied,
    )


def _activation(folder: ModelFolder, kind: str) -> Activation:
    if kind == "gated-gelu":  # in v1.1 this means the approximation
        return "gelu_tanh"
    name = kind.removeprefix(GATED)
    if name not in ACTIVATIONS:
        where = folder.path / CONFIG_FILE
        raise ValueError(
            f"{where}: feed_forward_proj must be one of {', '.join(ACTIVATIONS)}, gated or not, is {kind!r}"
        )
    return ACTIVATIONS[name]


def _parts(size: TransformerConfig, scaled: bool) -> dict[str, Part]:
    """The source of each tensor of our model."""
    to_output = times(size.d_model**-0.5) if scaled else as_it_is
    parts = {
        "source_embedding.tokens.weight": Part((*EMBEDDINGS, OUTPUT) if size.tied_output else EMBEDDINGS),
        "projection.weight": Part((OUTPUT,)),
        "encoder_norm.weight": Part(("encoder.final_layer_norm.weight",)),
        "decoder_norm.weight": Part(("decoder.final_layer_norm.weight",), to_output),
    }
    for stack, count, attentions in (
        ("encoder", size.encoder_layers, {"self": "SelfAttention"}),
        ("decoder", size.decoder_layers, {"self": "SelfAttention", "cross": "EncDecAttention"}),
    ):
        first = f"{stack}.block.0.layer.0.SelfAttention"
        parts[f"{stack}_bias.weight"] = Part((f"{first}.relative_attention_bias.weight",))
        for index in range(count):
            ours, theirs = f"{stack}.{index}", f"{stack}.block.{index}.layer"
            for place, (kind, attention) in enumerate(attentions.items()):
                parts |= _attention(f"{ours}.{kind}_attention", f"{theirs}.{place}.{attention}", size.head_width)
                parts[f"{ours}.{kind}_residual.norm.weight"] = Part((f"{theirs}.{place}.layer_norm.weight",))
            last = f"{theirs}.{len(attentions)}"
            parts |= _feed_forward(f"{ours}.feed_forward", f"{last}.DenseReluDense", size.gated)
            parts[f"{ours}.feed_residual.norm.weight"] = Part((f"{last}.layer_norm.weight",))
    return parts


def _attention(ours: str, theirs: str, head_width: int) -> dict[str, Part]:
    parts = {f"{ours}.{part}.weight": Part((f"{theirs}.{name}.weight",)) for part, name in ATTENTION.items()}
    return parts | {f"{ours}.query.weight": Part((f"{theirs}.q.weight",), times(head_width**0.5))}


def _feed_forward(ours: str, theirs: str, gated: bool) -> dict[str, Part]:
    names = {"inner": "wi_0", "gate": "wi_1", "outer": "wo"} if gated else {"inner": "wi", "outer": "wo"}
    return {f"{ours}.{part}.weight": Part((f"{theirs}.{name}.weight",)) for part, name in names.items()}


def times(factor: float) -> Callable[[Tensor], Tensor]:
    """A function that multiplies a tensor, as float32, by `factor`."""
    return lambda tensor: tensor.float() * factor


FAMILIES = (T5("t5", scales=True), T5("mt5", scales=False))
