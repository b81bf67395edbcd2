"""A checkpoint's configuration: architecture, decoding rules, languages. Plain frozen values; needs no torch."""

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
"""Upper bound of a position table, allocated before the weights are read: 65,536 positions of 4,096 numbers."""


@dataclass(frozen=True, config=STRICT)
class TransformerConfig:
    """The shape of one encoder–decoder Transformer (*Attention Is All You Need*, table 3)."""

    source_vocabulary: Count
    """Rows of the source embedding."""

    target_vocabulary: Count
    """Rows of the target embedding, and the number of logits per step."""

    d_model: Count = 512
    """Width of every hidden state."""

    heads: Count = 8
    """Attention heads; each is d_model / heads wide, unless key_width is set."""

    key_width: Count | None = None
    """Width of one head's queries, keys and values, if it is not d_model / heads."""

    d_ff: Count = 2048
    """Inner width of the position-wise feed-forward network."""

    encoder_layers: Annotated[Layers, Field(ge=1)] = 6
    """Layers of the encoder (N in the paper)."""

    decoder_layers: Layers = 6
    """Layers of the decoder (N in the paper); 0 for an encoder alone, which has no target embedding and no output."""

    max_positions: Count = 512
    """The longest source or target, in tokens, including special tokens."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of activations dropped in training, at each place named in the paper (§5.4)."""

    norm_order: NormOrder = "post"
    """Normalisation after each residual sum ("post", as in the paper), or before each sub-layer ("pre")."""

    final_norm: bool = False
    """Whether each stack ends with a normalisation; usual if norm_order is "pre"."""

    norm_kind: NormKind = "layer"
    """Layer normalisation, or division by the root mean square, without mean and bias (T5)."""

    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the variance, or to the mean square, by which a normalisation divides."""

    activation: Activation = "relu"
    """The nonlinearity inside the feed-forward network.

    "gelu" is exact, by erf, and "gelu_tanh" its usual approximation; "swish" is x · sigmoid(x).
    """

    gated: bool = False
    """Whether the feed-forward network multiplies its activations by a second linear map of the same input."""

    biases: bool = True
    """Whether the linear maps of the layers have biases."""

    position_kind: PositionKind = "sinusoid"
    """Sinusoids by the closed form of §3.5, a learned table, or relative positions.

    In "sinusoid_halves" all sines precede all cosines, as in Marian and Pegasus; in "sinusoid_halves_even", as in
    M2M100, the wavelengths also reach 2π · 10000 itself. "relative" positions add nothing to the embedding, but a bias
    to the scores of self-attention, as in T5.
    """

    relative_buckets: Annotated[int, Field(ge=4)] = 32
    """Classes of distance with a bias each, if position_kind is "relative"."""

    relative_distance: Count = 128
    """Distances from here on share one class, on either side."""

    position_offset: TokenId = 0
    """The first token's row in the position table."""

    scale_embedding: bool = True
    """Whether embeddings are multiplied by sqrt(d_model) (§3.4)."""

    embedding_norm: bool = False
    """Whether the input of each stack, the sum of token and position, is normalised."""

    shared_embedding: bool = True
    """Whether source and target share one embedding table; their vocabularies then have one size."""

    tied_output: bool = True
    """Whether the output projection is the target embedding itself (§3.4)."""

    output_bias: bool = False
    """Whether a bias per token is added to the logits."""

    def __post_init__(self) -> None:
        """Check how the fields fit together."""
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
    """A native checkpoint's config.json: everything about a model but its weights and tokenizer."""

    name: Annotated[str, Field(min_length=1)]
    """The model's name for clients."""

    family: str
    """The family of the original checkpoint; "transformer" for a native one."""

    source_languages: Annotated[tuple[str, ...], Field(min_length=1)]
    """BCP-47 codes of the source languages."""

    target_languages: tuple[str, ...]
    """BCP-47 codes of the target languages; empty for an encoder alone."""

    architecture: TransformerConfig
    decoding: DecodingRules
    embedding: EmbeddingRules = EmbeddingRules()

    def __post_init__(self) -> None:
        """Check that decoding stays within the embedding and position tables."""
        if self.architecture.decoder_layers and not self.target_languages:
            raise ValueError("target_languages: must have at least 1 item for a model with a decoder, is empty")
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
        # The last token of an output is never an input, so it needs no position.
        for name, tokens, before in (
            ("max_source_tokens", rules.max_source_tokens, 0),
            ("max_output_tokens", rules.max_output_tokens, rules.prompt_tokens - 1),
        ):
            if tokens > size.max_positions - before:
                less = f" less the {before} tokens before it" if before else ""
                raise ValueError(
                    f"decoding.{name} must be at most max_positions, {size.max_positions}{less}, is {tokens}"
                )

    def save(self, path: Path) -> None:
        """Write the configuration as JSON to `path`."""
        path.write_bytes(TypeAdapter(CheckpointConfig).dump_json(self, indent=2) + b"\n")

    @classmethod
    def load(cls, path: Path) -> "CheckpointConfig":
        """Read a file written by `save`.

        Raises ValueError with the file's path and each key that is missing, unknown or out of range.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}") from error
