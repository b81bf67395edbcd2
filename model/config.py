"""What a checkpoint is, apart from its weights: architecture, decoding rules, languages.

Plain frozen values, readable without torch, so that the service can share them with the model.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dragoman.bundle.rules import DecodingRules, EmbeddingRules
from dragoman.bundle.validation import STRICT, Count, Layers, TokenId, explain

NormOrder = Literal["pre", "post"]
NormKind = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "gelu_tanh", "swish"]
PositionKind = Literal["sinusoid", "sinusoid_halves", "sinusoid_halves_even", "learned", "relative"]

MAX_POSITION_NUMBERS = 2**28
"""In a table of positions, which is made before anything else is known of a checkpoint: 4096 for 65536 positions."""


@dataclass(frozen=True, config=STRICT)
class TransformerConfig:
    """The shape of one encoder–decoder Transformer (*Attention Is All You Need*, table 3)."""

    source_vocabulary: Count
    """Rows of the source embedding."""

    target_vocabulary: Count
    """Rows of the target embedding, and the number of logits a step yields."""

    d_model: Count = 512
    """Width of every hidden state."""

    heads: Count = 8
    """Attention heads; each is d_model / heads wide, unless key_width says otherwise."""

    key_width: Count | None = None
    """Width of one head's queries, keys and values, where it is not d_model / heads."""

    d_ff: Count = 2048
    """Inner width of the position-wise feed-forward network."""

    encoder_layers: Annotated[Layers, Field(ge=1)] = 6
    """Layers of the encoder (N in the paper)."""

    decoder_layers: Layers = 6
    """Layers of the decoder (N in the paper); 0 in an encoder alone, which has no target embedding and no output."""

    max_positions: Count = 512
    """The longest source or target, in tokens with every special token counted."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of activations dropped in training, at each place the paper names (§5.4)."""

    norm_order: NormOrder = "post"
    """Layer normalisation after each residual sum, as the paper has it, or before each sub-layer."""

    final_norm: bool = False
    """One more normalisation at the end of each stack; usual where norm_order is "pre"."""

    norm_kind: NormKind = "layer"
    """Layer normalisation, or division by the root of the mean square, which has no mean and no bias (T5)."""

    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the variance, or to the mean square, that a normalisation divides by."""

    activation: Activation = "relu"
    """The nonlinearity inside the feed-forward network.

    "gelu" is the exact one, by erf, and "gelu_tanh" its usual approximation; "swish" is x · sigmoid(x).
    """

    gated: bool = False
    """The feed-forward network multiplies what its nonlinearity gives by a second linear map of the same input."""

    biases: bool = True
    """The linear maps of the layers have biases."""

    position_kind: PositionKind = "sinusoid"
    """Sinusoids by the closed form of §3.5, or a learned table.

    In "sinusoid_halves" all sines come first, then all cosines, as in Marian and Pegasus; in "sinusoid_halves_even", as
    in M2M100, the wavelengths moreover go up to 2π · 10000 itself. "relative" positions add nothing to the embedding,
    but a bias to the scores of self-attention, as in T5.
    """

    relative_buckets: Annotated[int, Field(ge=4)] = 32
    """Classes of distance that have a bias each, where position_kind is "relative"."""

    relative_distance: Count = 128
    """Distances from here on share one class, on either side."""

    position_offset: TokenId = 0
    """Row of the position table that the first token takes."""

    scale_embedding: bool = True
    """Multiply embeddings by sqrt(d_model) (§3.4)."""

    embedding_norm: bool = False
    """Normalise what enters each stack, token and position summed."""

    shared_embedding: bool = True
    """Source and target use one embedding table; their vocabularies then have one size."""

    tied_output: bool = True
    """The output projection is the target embedding itself (§3.4)."""

    output_bias: bool = False
    """A bias, one a word, is added to the logits."""

    def __post_init__(self) -> None:
        """Check what no single field can: how the fields fit together."""
        if self.key_width is None and self.d_model % self.heads:
            raise ValueError(f"d_model must be a multiple of heads, is {self.d_model} with {self.heads} heads")
        if self.position_kind.startswith("sinusoid") and self.d_model % 2:
            raise ValueError(f"d_model must be even for sinusoid positions, is {self.d_model}")
        rows = 0 if self.position_kind == "relative" else self.max_positions + self.position_offset
        if rows * self.d_model > MAX_POSITION_NUMBERS:
            raise ValueError(
                f"max_positions × d_model must be at most {MAX_POSITION_NUMBERS}, is {rows} × {self.d_model}"
            )
        if self.position_kind == "relative" and self.relative_distance <= self.relative_buckets // 2:
            raise ValueError(
                "relative_distance must be more than half of relative_buckets, "
                f"is {self.relative_distance} with {self.relative_buckets} buckets"
            )
        if self.shared_embedding and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                "shared_embedding needs one vocabulary size, "
                f"source has {self.source_vocabulary} and target {self.target_vocabulary}"
            )

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.key_width or self.d_model // self.heads

    @classmethod
    def base(cls, vocabulary: int) -> "TransformerConfig":
        """The paper's base model: N=6, d_model 512, 8 heads, d_ff 2048."""
        return cls(vocabulary, vocabulary)

    @classmethod
    def big(cls, vocabulary: int) -> "TransformerConfig":
        """The paper's big model: N=6, d_model 1024, 16 heads, d_ff 4096, dropout 0.3."""
        return cls(vocabulary, vocabulary, d_model=1024, heads=16, d_ff=4096, dropout=0.3)


@dataclass(frozen=True, config=STRICT)
class CheckpointConfig:
    """A native checkpoint's config.json: all that is known of a model beside weights and tokenizer."""

    name: Annotated[str, Field(min_length=1)]
    """What clients call the model."""

    family: str
    """The kind of checkpoint it came from; "transformer" for the project's own."""

    source_languages: Annotated[tuple[str, ...], Field(min_length=1)]
    """BCP-47 codes of the languages it reads."""

    target_languages: tuple[str, ...]
    """BCP-47 codes of the languages it writes; none in an encoder alone."""

    architecture: TransformerConfig
    decoding: DecodingRules
    embedding: EmbeddingRules = EmbeddingRules()

    def __post_init__(self) -> None:
        """Check that decoding stays within the embedding and position tables."""
        if self.architecture.decoder_layers and not self.target_languages:
            raise ValueError("target_languages: must hold at least 1 item where there is a decoder, is empty")
        rules, size = self.decoding, self.architecture
        for name, ids, rows in (
            ("start_id", (rules.start_id,), size.target_vocabulary),
            ("end_ids", rules.end_ids, size.target_vocabulary),
            ("suppressed_ids", rules.suppressed_ids, size.target_vocabulary),
            ("forced_end_id", () if rules.forced_end_id is None else (rules.forced_end_id,), size.target_vocabulary),
            ("pad_id", (rules.pad_id,), min(size.source_vocabulary, size.target_vocabulary)),
        ):
            if max(ids, default=0) >= rows:
                raise ValueError(f"decoding.{name} must be below the vocabulary's {rows}, is {max(ids)}")
        # The last token of an output is never fed.
        for name, tokens, before in (
            ("max_source_tokens", rules.max_source_tokens, 0),
            ("max_output_tokens", rules.max_output_tokens, rules.prompt_tokens - 1),
        ):
            most = size.max_positions - before
            if tokens > most:
                after = f" less the {before} tokens before it" if before else ""
                raise ValueError(
                    f"decoding.{name} must be at most max_positions, {size.max_positions}{after}, is {tokens}"
                )

    def save(self, path: Path) -> None:
        """Write the configuration as JSON to `path`."""
        path.write_bytes(TypeAdapter(CheckpointConfig).dump_json(self, indent=2) + b"\n")

    @classmethod
    def load(cls, path: Path) -> "CheckpointConfig":
        """Read what `save` wrote.

        Raises ValueError that names the file and each key that is missing, unknown or out of range.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}") from error
