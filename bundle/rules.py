"""Decoding and embedding rules of a model: start, end and suppressed tokens, length limits, pooling."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dragoman.bundle.validation import STRICT, Count, TokenId

PoolingKind = Literal["mean", "cls", "max"]


@dataclass(frozen=True, config=STRICT)
class DecodingRules:
    """The decoding rules of a checkpoint; the engine itself knows no family's constants."""

    start_id: TokenId
    """The decoder's first input, unless the target language decides it; never part of an output."""

    end_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    """Each of these ends an output, and counts as part of it."""

    pad_id: TokenId
    """Fills rows of a batch on the right; its value never changes an answer."""

    suppressed_ids: tuple[TokenId, ...] = ()
    """Tokens that are never chosen."""

    prompt_tokens: Count = 1
    """Number of tokens fed to the decoder before its first free choice, including the start token. The tokenizer
    chooses them by target language; none is part of an output."""

    forced_end_id: TokenId | None = None
    """The last token of an output that reaches its limit, whatever the model chooses; it counts."""

    max_source_tokens: Count = 512
    """The longest source, including special tokens."""

    max_output_tokens: Count = 512
    """The longest output, including the end token."""

    output_factor: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 3.0
    """An output has at most output_factor × source tokens + output_margin tokens."""

    output_margin: Count = 16
    """See output_factor; allows a long translation of a very short source."""

    @classmethod
    def none(cls, pad_id: int, max_source_tokens: int) -> "DecodingRules":
        """The rules of an encoder without a decoder, in which only the two arguments are used."""
        return cls(pad_id, (pad_id,), pad_id, max_source_tokens=max_source_tokens, max_output_tokens=1)

    def output_limit(self, source_tokens: int, asked: int | None = None) -> int:
        """The longest output for a source of `source_tokens`, in tokens, including the end token.

        `asked` is the caller's limit. Above the checkpoint's limit it has no effect; below 1 it raises ValueError.
        """
        if asked is not None and asked < 1:
            raise ValueError(f"asked must be at least 1 token, is {asked}")
        by_source = int(self.output_factor * source_tokens) + self.output_margin
        limit = min(self.max_output_tokens, by_source)
        return limit if asked is None else min(limit, asked)


@dataclass(frozen=True, config=STRICT)
class EmbeddingRules:
    """The default way from a text to a vector; a caller may choose another."""

    pooling: PoolingKind = "mean"
    """The mean of the encoder's states over all tokens, the first token's state, or each dimension's largest value."""

    normalize: bool = True
    """Whether vectors are scaled to length 1."""
