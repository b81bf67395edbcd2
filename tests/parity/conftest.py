"""A tiny checkpoint and its bundle, exported once a run."""

from pathlib import Path

import pytest
import torch

from dragoman.export.bundle import Bundle
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.model.checkpoint import Checkpoint
from tests.tiny import clear_cut, sentences, tiny_checkpoint


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny products gain nothing from more threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny") / "checkpoint"


@pytest.fixture(scope="session")
def checkpoint(checkpoint_folder: Path) -> Checkpoint:
    return tiny_checkpoint(checkpoint_folder)


@pytest.fixture(scope="session")
def bundle(checkpoint: Checkpoint, checkpoint_folder: Path) -> Bundle:
    folder = checkpoint_folder.with_name("bundle")
    texts = list(clear_cut(checkpoint, sentences(160)))
    made, _proof = export_checkpoint(checkpoint_folder, folder, ExportOptions(texts=texts), lambda _stage: None)
    return made
