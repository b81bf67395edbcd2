"""What a family of checkpoints is to the importer."""

from collections.abc import Collection
from typing import Protocol

from dragoman.bundle.tokenizers import Tokenizer
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import TransformerConfig
from dragoman.model.importing.folder import ModelFolder


class Family(Protocol):
    """Knows its folders, and how to make a model of one."""

    @property
    def name(self) -> str:
        """What --family and the manifest call it."""

    def recognise(self, folder: ModelFolder) -> bool:
        """Whether the folder holds such a checkpoint."""

    def read(self, folder: ModelFolder, tokenizer: Tokenizer, ignored_rules: Collection[str]) -> Checkpoint:
        """The checkpoint. Raises ValueError or FileNotFoundError that names what is wrong with which file."""


def check_vocabulary(folder: ModelFolder, tokenizer: Tokenizer, size: TransformerConfig) -> None:
    """Raise ValueError where the tokenizer gives or takes ids that the embeddings do not have."""
    for kind, ids, rows in (
        ("source", tokenizer.vocabulary, size.source_vocabulary),
        ("target", tokenizer.target_vocabulary, size.target_vocabulary),
    ):
        if ids > rows:
            raise ValueError(f"{folder.path}: the tokenizer has {ids} {kind} ids, the {kind} embedding {rows} rows")
