"""The importer's interface to a family of checkpoints."""

from collections.abc import Collection
from typing import Protocol

from dragoman.bundle.tokenizers import Tokenizer
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import TransformerConfig
from dragoman.model.importing.folder import ModelFolder


class Family(Protocol):
    """Recognises a family's folders, and reads them as our model."""

    @property
    def name(self) -> str:
        """The family's name in --family and in the manifest."""

    def recognise(self, folder: ModelFolder) -> bool:
        """Whether the folder contains a checkpoint of this family."""

    def read(self, folder: ModelFolder, tokenizer: Tokenizer, ignored_rules: Collection[str]) -> Checkpoint:
        """The checkpoint. Raises ValueError or FileNotFoundError with the file's path and its faults."""


def check_vocabulary(folder: ModelFolder, tokenizer: Tokenizer, size: TransformerConfig) -> None:
    """Raise ValueError if the tokenizer has ids beyond the embeddings."""
    for kind, ids, rows in (
        ("source", tokenizer.vocabulary, size.source_vocabulary),
        ("target", tokenizer.target_vocabulary, size.target_vocabulary),
    ):
        if ids > rows:
            raise ValueError(f"{folder.path}: the tokenizer has {ids} {kind} ids, the {kind} embedding {rows} rows")
