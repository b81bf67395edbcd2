"""Import of other projects' checkpoints into our own model.

A `Family` recognises its folders by their JSON files, maps each of their tensors to our name, and converts their
decoding rules. To add a family, write a module of this package and list it in `FAMILIES`.
"""

from collections.abc import Collection
from pathlib import Path

from dragoman.bundle.tokenizers import copy_tokenizer
from dragoman.model import checkpoint
from dragoman.model.checkpoint import Checkpoint, load_checkpoint
from dragoman.model.importing import bart_like, bert, t5
from dragoman.model.importing.family import Family
from dragoman.model.importing.folder import ModelFolder
from dragoman.model.importing.tokenizers import import_tokenizer

NATIVE = "transformer"
"""The family of native checkpoints."""

FAMILIES: tuple[Family, ...] = (*bart_like.FAMILIES, *t5.FAMILIES, *bert.FAMILIES)
"""The importable families; the first that recognises a folder reads it."""

FAMILY_NAMES = (NATIVE, *(family.name for family in FAMILIES))


def family_of(folder: Path) -> str:
    """The family of a folder's checkpoint, one of `FAMILY_NAMES`.

    Raises FileNotFoundError without a config.json, and ValueError for an unknown family.
    """
    found = ModelFolder.open(folder)
    if "architecture" in found.config:
        return NATIVE
    for family in FAMILIES:
        if family.recognise(found):
            return family.name
    model_type = repr(found.model_type) if found.model_type else "missing"
    raise ValueError(f"{folder}: unknown family: model_type is {model_type}, known are {', '.join(FAMILY_NAMES)}")


def load_any(folder: Path, family: str, tokenizer_folder: Path, ignored_rules: Collection[str] = ()) -> Checkpoint:
    """Read a native or foreign checkpoint, and write its tokenizer into the new `tokenizer_folder`.

    `family` is one of `FAMILY_NAMES`. Ignores the decoding rules in `ignored_rules`. Raises ValueError or
    FileNotFoundError with the file's path and its faults, such as a missing tensor or an unsupported rule.
    """
    if family == NATIVE:
        found = load_checkpoint(folder)
        copy_tokenizer(folder / checkpoint.TOKENIZER_FOLDER, tokenizer_folder)
        return found
    for each in FAMILIES:
        if each.name == family:
            tokenizer = import_tokenizer(family, folder, tokenizer_folder)
            return each.read(ModelFolder.open(folder), tokenizer, ignored_rules)
    raise ValueError(f"family must be one of {', '.join(FAMILY_NAMES)}, is {family!r}")
