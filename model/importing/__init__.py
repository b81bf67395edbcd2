"""Checkpoints of other projects, read as our own model.

A family is a `Family`: it knows its folders by what their JSON files say, gives our name to each of their tensors, and
turns their rules of decoding into ours. To add one, write it in a module of this package and list it in `FAMILIES`.
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
"""What the project's own checkpoints are called."""

FAMILIES: tuple[Family, ...] = (*bart_like.FAMILIES, *t5.FAMILIES, *bert.FAMILIES)
"""Those that we can import; the first that recognises a folder reads it."""

FAMILY_NAMES = (NATIVE, *(family.name for family in FAMILIES))


def family_of(folder: Path) -> str:
    """The name of the family that a folder's checkpoint is of, one of `FAMILY_NAMES`.

    Raises FileNotFoundError where it holds no config.json, ValueError where it is of none that is known here.
    """
    found = ModelFolder.open(folder)
    if "architecture" in found.config:
        return NATIVE
    for family in FAMILIES:
        if family.recognise(found):
            return family.name
    what = repr(found.model_type) if found.model_type else "missing"
    raise ValueError(
        f"{folder}: of no family that is known here: model_type is {what}, known: {', '.join(FAMILY_NAMES)}"
    )


def load_any(folder: Path, family: str, tokenizer_folder: Path, ignored_rules: Collection[str] = ()) -> Checkpoint:
    """Read a checkpoint of our own or of another project, and write its tokenizer into the new `tokenizer_folder`.

    `family` is one of `FAMILY_NAMES`. Decoding rules named in `ignored_rules` are left out. Raises ValueError or
    FileNotFoundError that names what is wrong with which file: a tensor that is missing, unknown or misshapen, a rule
    that is not supported.
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
