"""Decoding and embedding rules of a model: start, end and suppressed tokens, length limits, pooling."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dragoman.bundle.validation import STRICT, Count, TokenId

PoolingKind = Literal["mean", "cls", "max"]


@dataclass(frozen=True, config=STRICT)
class DecodingRules:
    """How a checkpoint wants to be decoded; the engine holds no constant of any family."""

    start_id: TokenId
    """The token that the decoder is fed first, unless the target language decides it; never part of an output."""

    end_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    """Any of these ends an output, and is counted in it."""

    pad_id: TokenId
    """Fills rows of a batch on the right; what it is never changes an answer."""

    suppressed_ids: tuple[TokenId, ...] = ()
    """Tokens that are never chosen."""

    prompt_tokens: Count = 1
    """How many tokens the decoder is fed before its first free choice, the start token counted. Which they are is the
    tokenizer's to say, by target language; none is part of an output."""

    forced_end_id: TokenId | None = None
    """What an output ends with where it would else reach its limit: the last token is this one whatever the model
    chooses, and is counted."""

    max_source_tokens: Count = 512
    """The longest source, every special token counted."""

    max_output_tokens: Count = 512
    """The longest output, the end token counted."""

    output_factor: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 3.0
    """An output holds at most output_factor × source tokens + output_margin tokens."""

    output_margin: Count = 16
    """See output_factor; lets a very short source still have a long translation."""

    @classmethod
    def none(cls, pad_id: int, max_source_tokens: int) -> "DecodingRules":
        """Those of an encoder alone, of which nobody reads anything but these two."""
        return cls(pad_id, (pad_id,), pad_id, max_source_tokens=max_source_tokens, max_output_tokens=1)

    def output_limit(self, source_tokens: int, asked: int | None = None) -> int:
        """The most tokens that a source of `source_tokens` may yield, the end token counted.

        `asked` is the caller's own limit; above the checkpoint's it has no effect, below 1 it is a ValueError.
        """
        if asked is not None and asked < 1:
            raise ValueError(f"asked must be at least 1 token, is {asked}")
        by_source = int(self.output_factor * source_tokens) + self.output_margin
        limit = min(self.max_output_tokens, by_source)
        return limit if asked is None else min(limit, asked)


@dataclass(frozen=True, config=STRICT)
class EmbeddingRules:
    """How a checkpoint makes a vector of a text, unless a caller wants it otherwise."""

    pooling: PoolingKind = "mean"
    """The mean of the encoder's states over all tokens, the first token's state, or each dimension's largest value."""

    normalize: bool = True
    """Vectors are scaled to length 1."""
