"""What the tokenizer of an imported checkpoint does around its pieces: special tokens, languages, prompts."""

from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dragoman.bundle.validation import STRICT, TokenId, explain

DESCRIPTION_FILE = "description.json"

Slot = TokenId | Literal["source", "target"]
"""A token; or that of the source language or the target language."""


Kind = Literal["pieces", "tokenizers"]
"""How text becomes pieces: by SentencePiece models with a vocabulary of their own, or by the tokenizers library."""


@dataclass(frozen=True, config=STRICT)
class Language:
    """A language that a checkpoint knows."""

    code: str
    """BCP-47."""
    names: tuple[str, ...] = ()
    """What the family calls it, such as fra_Latn."""
    id: TokenId | None = None
    """Its token, if it has one."""


@dataclass(frozen=True, config=STRICT)
class Instruction:
    """Words before a text that ask for its translation, as T5 wants them."""

    source: str
    target: str
    words: str


@dataclass(frozen=True, config=STRICT)
class Description:
    """description.json."""

    kind: Kind

    before: tuple[Slot, ...]
    """What stands before the pieces of a source; a target's token only where a translation is asked for."""

    after: tuple[Slot, ...]
    """What stands after them."""

    prompt: tuple[Slot, ...]
    """What the decoder is fed before its first free choice; nothing where there is no decoder."""

    control_ids: tuple[TokenId, ...]
    """Source tokens that stand for no text."""

    unknown_id: TokenId | None
    """One of them: that of what the vocabulary does not have."""

    source_languages: tuple[Language, ...]
    target_languages: tuple[Language, ...]
    instructions: tuple[Instruction, ...] = ()

    target_control_ids: tuple[TokenId, ...] | None = None
    """Target tokens that stand for no text, where the vocabularies are two."""

    def __post_init__(self) -> None:
        """Check that each slot can be filled."""
        for name in ("before", "after", "prompt"):
            for slot in getattr(self, name):
                if not isinstance(slot, str):
                    continue
                languages = self.source_languages if slot == "source" else self.target_languages
                if not languages or any(language.id is None for language in languages):
                    raise ValueError(f"{name} holds the {slot} language, so each of those must have a token")
        if "target" in self.after:
            raise ValueError("after must not hold the target language, which a source may be without")
        if "source" in self.prompt:
            raise ValueError("prompt must not hold the source language")

    def save(self, folder: Path) -> None:
        """Write it into `folder`."""
        content = TypeAdapter(Description).dump_json(self, indent=1, exclude_defaults=True)
        (folder / DESCRIPTION_FILE).write_bytes(content + b"\n")

    @classmethod
    def load(cls, folder: Path) -> "Description":
        """Read what `save` wrote. Raises ValueError that names the file and what is wrong with it."""
        path = folder / DESCRIPTION_FILE
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}") from error
