"""The description of an imported checkpoint's tokenizer: special tokens, languages, prompts."""

from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dragoman.bundle.validation import STRICT, TokenId, explain

DESCRIPTION_FILE = "description.json"

Slot = TokenId | Literal["source", "target"]
"""A token id, or a placeholder for the token of the source or target language."""

Kind = Literal["pieces", "tokenizers"]
"""How text is split: by SentencePiece models with a separate vocabulary, or by the tokenizers library."""


@dataclass(frozen=True, config=STRICT)
class Language:
    """A language of a checkpoint."""

    code: str
    """BCP-47."""
    names: tuple[str, ...] = ()
    """The family's own names for it, such as fra_Latn."""
    id: TokenId | None = None
    """Its token, if it has one."""


@dataclass(frozen=True, config=STRICT)
class Instruction:
    """Words before a text that request its translation, as T5 expects them."""

    source: str
    target: str
    words: str


@dataclass(frozen=True, config=STRICT)
class Description:
    """description.json."""

    kind: Kind

    before: tuple[Slot, ...]
    """Tokens before the pieces of a source; the target language's token only for a translation."""

    after: tuple[Slot, ...]
    """Tokens after the pieces of a source."""

    prompt: tuple[Slot, ...]
    """Tokens fed to the decoder before its first free choice; empty without a decoder."""

    control_ids: tuple[TokenId, ...]
    """Source tokens without text."""

    unknown_id: TokenId | None
    """The control token for text outside the vocabulary."""

    source_languages: tuple[Language, ...]
    target_languages: tuple[Language, ...]
    instructions: tuple[Instruction, ...] = ()

    target_control_ids: tuple[TokenId, ...] | None = None
    """Target tokens without text, if source and target have separate vocabularies."""

    def __post_init__(self) -> None:
        """Check that each slot can be filled."""
        for name in ("before", "after", "prompt"):
            for slot in getattr(self, name):
                if not isinstance(slot, str):
                    continue
                languages = self.source_languages if slot == "source" else self.target_languages
                if not languages or any(language.id is None for language in languages):
                    raise ValueError(f"{name} contains the {slot} language, so every {slot} language must have a token")
        if "target" in self.after:
            raise ValueError("after must not contain the target language: a source need not have one")
        if "source" in self.prompt:
            raise ValueError("prompt must not contain the source language")

    def save(self, folder: Path) -> None:
        """Write it into `folder`."""
        content = TypeAdapter(Description).dump_json(self, indent=1, exclude_defaults=True)
        (folder / DESCRIPTION_FILE).write_bytes(content + b"\n")

    @classmethod
    def load(cls, folder: Path) -> "Description":
        """Read a file written by `save`. Raises ValueError with the file's path and its faults."""
        path = folder / DESCRIPTION_FILE
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}") from error
