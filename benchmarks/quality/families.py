"""Imported checkpoints against transformers: a table of how near their exports come.

    python -m benchmarks.quality.families [--only NAME] [--texts 200]

For each kind of each family a tiny random checkpoint is made by transformers, imported, and exported. Logits of its
graphs, step by step with their cache, are held against those of transformers at sizes that were not traced; greedy
tokens against `generate`, each text up to its first step whose two best logits lie within 1e-3, all texts in batches of
mixed lengths and targets; each text alone against itself in its batch. In int8, on the same prefixes, it is counted how
many steps choose as float32. The table goes to docs/checkpoints.md by hand.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from dragoman.bundle.graph_decoder import Decoded, GraphDecoder
from dragoman.bundle.manifest import Bundle
from dragoman.bundle.precision import Precision
from dragoman.export.exporter import manifest_of
from dragoman.export.graph_writer import show_logits, write_graphs
from dragoman.export.int8 import quantize
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import greedy, pad
from dragoman.model.importing import family_of, load_any
from tests.support.hugging_face import BART_LIKE, generate, make, prompted
from tests.support.hugging_face_t5 import KINDS, make_t5
from tests.support.tiny import sentences

SIZES = ((1, 1), (1, 19), (3, 7), (8, 40))
"""Batch and source at which logits are compared, over `STEPS` cached steps; none was traced."""

STEPS = 40
ROWS = 32
MARGIN = 1e-3

MAKERS: Mapping[str, Callable[[Path], Any]] = {
    **{name: partial(make, variant) for name, variant in BART_LIKE.items()},
    **{name if name == "mt5" else f"t5 {name}": partial(make_t5, name) for name in KINDS},
}
"""What writes a checkpoint of each kind into a folder, and gives transformers' model."""


@dataclass(frozen=True)
class Row:
    """What was found of one kind of checkpoint."""

    name: str
    logits: float
    """The largest difference to transformers' logits."""
    texts: int
    equal: int
    """Texts with the same tokens as transformers, as far as they can be compared."""
    whole: int
    """Texts that could be compared whole."""
    distinct: float
    """Different tokens an output, on average."""
    alone: int
    """Texts with the same tokens alone as in their batch."""
    int8: float
    """The part of the steps that int8 decides as float32 does."""


def measure(name: str, texts: Sequence[str], folder: Path) -> Row:
    """Make a checkpoint, import it, export it twice, and compare."""
    model = MAKERS[name](folder / "checkpoint")
    checkpoint = load_any(folder / "checkpoint", family_of(folder / "checkpoint"), folder / "tokenizer")
    sources, prompts = prompted(checkpoint, texts)
    rules = checkpoint.config.decoding
    most = rules.max_output_tokens
    decoder = open_graphs(checkpoint, "float32", folder / "float32")
    found = [
        output
        for start in range(0, len(texts), ROWS)
        for output in decoder.decode(
            sources[start : start + ROWS], [most] * len(sources[start : start + ROWS]), prompts[start : start + ROWS]
        )
    ]
    alone = [decoder.decode([source], [most], [prompt])[0] for source, prompt in zip(sources, prompts, strict=True)]
    reference = greedy(checkpoint.model, rules, sources, [most] * len(sources), prompts)
    right = [generate(model, source, prompt, most) for source, prompt in zip(sources, prompts, strict=True)]
    sure = [_sure(output.margins, len(tokens)) for output, tokens in zip(reference, right, strict=True)]
    return Row(
        name,
        logits_difference(model, checkpoint, decoder),
        len(texts),
        sum(output.tokens[:end] == tokens[:end] for output, tokens, end in zip(found, right, sure, strict=True)),
        sum(end == len(tokens) for tokens, end in zip(right, sure, strict=True)),
        float(np.mean([len(set(tokens)) for tokens in right])),
        sum(one.tokens == other.tokens for one, other in zip(found, alone, strict=True)),
        agreement(open_graphs(checkpoint, "int8", folder / "int8"), sources, prompts, found),
    )


def open_graphs(checkpoint: Checkpoint, precision: Precision, folder: Path) -> GraphDecoder:
    """Export into the new `folder`, with logits, and open what came out."""
    folder.mkdir()
    model = quantize(checkpoint.model) if precision == "int8" else checkpoint.model
    write_graphs(folder, model, checkpoint.config.decoding, precision=precision)
    show_logits(folder)
    manifest = manifest_of(checkpoint.config, precision, folder)
    return GraphDecoder(Bundle(folder, manifest), threads=1, logits=True)


def logits_difference(model: Any, checkpoint: Checkpoint, decoder: GraphDecoder) -> float:
    """The largest difference between logits of cached steps and of transformers."""
    size, rules = checkpoint.config.architecture, checkpoint.config.decoding
    allowed = np.setdiff1d(np.arange(size.target_vocabulary), rules.suppressed_ids)
    rng = np.random.default_rng(0)
    worst = 0.0
    for batch, width in SIZES:
        sources = [rng.integers(4, size.source_vocabulary - 1, max(1, width - row)).tolist() for row in range(batch)]
        targets = rng.integers(4, size.target_vocabulary - 1, (batch, STEPS)).tolist()
        ids, lengths = pad(sources, rules.pad_id)
        visible = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        fed = torch.tensor([[rules.start_id, *row[:-1]] for row in targets])
        with torch.no_grad():
            right = model(input_ids=ids, attention_mask=visible, decoder_input_ids=fed).logits.numpy()
        found = np.stack([step["logits"] for step in decoder.force(sources, targets)], axis=1)
        worst = max(worst, float(np.abs(found - right)[..., allowed].max()))
    return worst


def agreement(
    decoder: GraphDecoder,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Decoded],
) -> float:
    """The part of the steps in which a decoder, fed with `outputs`, chooses what stands there."""
    agreed = [
        int(step["next_token"][row, 0]) == outputs[start + row].tokens[index]
        for start in range(0, len(sources), ROWS)
        for index, step in enumerate(_forced(decoder, sources, prompts, outputs, start))
        for row in range(len(sources[start : start + ROWS]))
        if index < len(outputs[start + row].log_probs)
    ]
    return float(np.mean(agreed))


def _forced(
    decoder: GraphDecoder,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Decoded],
    start: int,
) -> Iterator[dict[str, Any]]:
    rows = slice(start, start + ROWS)
    return decoder.force(sources[rows], [output.tokens for output in outputs[rows]], prompts[rows])


def _sure(margins: Sequence[float], steps: int) -> int:
    return next((step for step, margin in enumerate(margins) if margin < MARGIN), steps)


@click.command()
@click.option("--only", type=click.Choice(list(MAKERS)), multiple=True, help="Kinds to measure; all without it.")
@click.option("--texts", type=click.IntRange(1), default=200, show_default=True, help="Texts for each.")
def main(only: tuple[str, ...], texts: int) -> None:
    """Hold exports of imported checkpoints against transformers."""
    torch.set_num_threads(1)
    click.echo("| checkpoint | logits within | tokens equal | compared whole | words an output | alone | int8 agrees |")
    click.echo("|---|---:|---:|---:|---:|---:|---:|")
    for name in only or MAKERS:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, sentences(texts), Path(folder))
        click.echo(
            f"| {row.name} | {row.logits:.1e} | {row.equal} of {row.texts} | {row.whole} | {row.distinct:.1f} "
            f"| {row.alone} of {row.texts} | {row.int8:.1%} |"
        )


if __name__ == "__main__":
    main()
