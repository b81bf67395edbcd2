"""Exports that are there already, put where a test needs them: a trace takes seconds, a copy none."""

import shutil
from collections.abc import Callable
from pathlib import Path

from dragoman.bundle.graph_decoder import GraphDecoder
from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE
from dragoman.bundle.manifest import WEIGHTS_FILE, Bundle
from dragoman.export.graph_writer import show_logits


def copy_graphs(source: Path, folder: Path) -> None:
    for name in (ENCODER_FILE, DECODER_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, folder / name)


def copier(source: Path) -> Callable[..., None]:
    """In place of `write_graphs`, whatever it is asked for: writes the graphs that are in `source`."""
    return lambda folder, *_, **__: copy_graphs(source, folder)


def decoder_with_logits(graphs: Path, bundle: Bundle, scratch: Path) -> GraphDecoder:
    """A decoder over a copy of `graphs` in `scratch` that shows their logits; shape and rules are those of `bundle`."""
    copy_graphs(graphs, scratch)
    show_logits(scratch)
    return GraphDecoder(Bundle(scratch, bundle.manifest), threads=1, logits=True)
