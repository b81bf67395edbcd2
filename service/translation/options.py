"""Choices that a caller makes for one call, apart from its texts and its deadline."""

from dataclasses import dataclass

from dragoman.client.values import Pooling
from dragoman.service.errors import InvalidRequestError


@dataclass(frozen=True)
class TranslateOptions:
    """Options of a Translate call."""

    source_language: str = ""
    """BCP 47, or the model's own code; "" if the model reads a single language."""
    target_language: str = ""
    """BCP 47, or the model's own code; "" if the model writes a single language."""
    max_output_tokens: int = 0
    """Maximum length of each output, end token included. The model's own limit caps it, and replaces 0."""
    truncate: bool = False
    """Cut overlong texts instead of refusing the call."""
    scores: bool = True
    """Compute the score of each output; costs a pass over the vocabulary at each step."""

    def check(self) -> None:
        """Raise InvalidRequestError if `max_output_tokens` is negative."""
        if self.max_output_tokens < 0:
            raise InvalidRequestError("max_output_tokens", f"must be at least 0, is {self.max_output_tokens}")


@dataclass(frozen=True)
class EmbedOptions:
    """Options of an Embed call."""

    source_language: str = ""
    """BCP 47, or the model's own code; "" if the model reads a single language."""
    pooling: Pooling | None = None
    """None: as in the model's checkpoint."""
    normalize: bool | None = None
    """Scale each vector to length 1. None: as in the model's checkpoint."""
    truncate: bool = False
    """Cut overlong texts instead of refusing the call."""
