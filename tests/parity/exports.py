"""Copies of existing exports for other tests: a trace takes seconds, a copy none."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.bundle.graph_decoder import GraphDecoder, decode_alone
from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE
from dragoman.bundle.manifest import WEIGHTS_FILE, Bundle
from dragoman.export.graph_writer import show_logits
from dragoman.model.greedy import pad
from dragoman.model.transformer import Transformer


def copy_graphs(source: Path, folder: Path) -> None:
    for name in (ENCODER_FILE, DECODER_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, folder / name)


def copier(source: Path) -> Callable[..., None]:
    """A replacement for `write_graphs` that copies the graphs in `source`, whatever its arguments."""
    return lambda folder, *_, **__: copy_graphs(source, folder)


def decoder_with_logits(graphs: Path, bundle: Bundle, scratch: Path) -> GraphDecoder:
    """A decoder that outputs logits, over a copy of `graphs` in `scratch`, with the manifest of `bundle`."""
    copy_graphs(graphs, scratch)
    show_logits(scratch)
    return GraphDecoder(Bundle(scratch, bundle.manifest), threads=1, logits=True)


def check_bit_equal_scores(bundle: Bundle, threads: int) -> None:
    """Tokens and scores of random sources are bit-equal alone and in a batch, in either order."""
    decoder = GraphDecoder(bundle, threads)
    # Lengths of 7, 11 and 15 are those at which attention at an unpadded width sums in another order.
    rng = np.random.default_rng(3)
    sources = [rng.integers(4, 340, length).tolist() for length in range(1, 41)]
    limits = [24] * len(sources)
    alone = decode_alone(decoder, sources, limits)
    assert decoder.decode(sources, limits) == alone
    assert decoder.decode(sources[::-1], limits) == alone[::-1]


def state_differences(
    model: Transformer, decoder: GraphDecoder, sources: Sequence[Sequence[int]]
) -> NDArray[np.float32]:
    """The largest difference between the states of PyTorch and of the graph, for each source."""
    ids, lengths = pad(sources, 0)
    with torch.no_grad():
        right = model.encode(ids, lengths).numpy()
    found = decoder.encode(sources)["hidden"]
    return np.array(
        [np.abs(found[row, : len(source)] - right[row, : len(source)]).max() for row, source in enumerate(sources)]
    )
