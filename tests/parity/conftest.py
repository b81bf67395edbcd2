"""A tiny checkpoint and its bundle, exported once a run."""

from pathlib import Path

import pytest
import torch

from dragoman.bundle.graph_decoder import GraphDecoder
from dragoman.bundle.manifest import Bundle
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.export.graph_writer import write_graphs
from dragoman.model.checkpoint import Checkpoint
from tests.parity.exports import decoder_with_logits
from tests.support.tiny import clear_cut, random_model, sentences, tiny_checkpoint


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """More threads do not speed up tiny products."""
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
    texts = list(clear_cut(checkpoint, sentences(96)))
    made, _proof = export_checkpoint(checkpoint_folder, folder, ExportOptions(texts=texts), lambda _stage: None)
    return made


@pytest.fixture(scope="session")
def logits_decoder(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> GraphDecoder:
    """A decoder over the graphs of `bundle` that outputs logits."""
    return decoder_with_logits(bundle.folder, bundle, tmp_path_factory.mktemp("logits"))


@pytest.fixture(scope="session")
def other_weights(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graphs of a model of the same shape but other weights."""
    folder = tmp_path_factory.mktemp("other")
    write_graphs(folder, random_model(seed=2), checkpoint.config.decoding)
    return folder
