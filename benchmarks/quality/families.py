"""Agreement of exported checkpoints with transformers, as a table.

    python -m benchmarks.quality.families [--only NAME] [--texts 200]

For each variant of each family, a tiny random checkpoint is created by transformers, imported and exported. Four
results are compared:

- logits of cached steps, with those of transformers, at sizes that were not traced;
- greedy tokens in batches of mixed lengths and targets, with `generate`: each text up to its first step whose two best
  logits lie within 1e-3;
- tokens of each text alone, with those in its batch;
- the next token in int8, with that in float32, given the same prefixes.

The table is copied to docs/checkpoints.md by hand.
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
"""(batch, source tokens) at which logits are compared, over `STEPS` cached steps; none was traced."""

STEPS = 40
ROWS = 32
MARGIN = 1e-3

MAKERS: Mapping[str, Callable[[Path], Any]] = {
    **{name: partial(make, variant) for name, variant in BART_LIKE.items()},
    **{name if name == "mt5" else f"t5 {name}": partial(make_t5, name) for name in KINDS},
}
"""Functions that write a checkpoint into a folder and return the transformers model, by variant."""


@dataclass(frozen=True)
class Row:
    """Results of one variant, as a row of the table."""

    name: str
    logits: float
    """Largest absolute difference from the logits of transformers."""
    texts: int
    equal: int
    """Texts whose compared tokens equal those of transformers."""
    whole: int
    """Texts that were compared up to their last token."""
    distinct: float
    """Mean number of distinct tokens per output."""
    alone: int
    """Texts with the same tokens alone and in their batch."""
    int8: float
    """Share of steps on which int8 and float32 choose the same token."""


def measure(name: str, texts: Sequence[str], folder: Path) -> Row:
    """Create, import and export a checkpoint in float32 and int8, and compare the results."""
    model = MAKERS[name](folder / "checkpoint")
    checkpoint = load_any(folder / "checkpoint", family_of(folder / "checkpoint"), folder / "tokenizer")
    sources, prompts = prompted(checkpoint, texts)
    rules = checkpoint.config.decoding
    max_tokens = rules.max_output_tokens
    decoder = open_graphs(checkpoint, "float32", folder / "float32")
    outputs = [
        output
        for start in range(0, len(texts), ROWS)
        for output in decoder.decode(
            sources[start : start + ROWS],
            [max_tokens] * len(sources[start : start + ROWS]),
            prompts[start : start + ROWS],
        )
    ]
    alone = [
        decoder.decode([source], [max_tokens], [prompt])[0] for source, prompt in zip(sources, prompts, strict=True)
    ]
    reference = greedy(checkpoint.model, rules, sources, [max_tokens] * len(sources), prompts)
    expected = [generate(model, source, prompt, max_tokens) for source, prompt in zip(sources, prompts, strict=True)]
    ends = [_first_close_step(output.margins, len(tokens)) for output, tokens in zip(reference, expected, strict=True)]
    return Row(
        name,
        logits_difference(model, checkpoint, decoder),
        len(texts),
        sum(output.tokens[:end] == tokens[:end] for output, tokens, end in zip(outputs, expected, ends, strict=True)),
        sum(end == len(tokens) for tokens, end in zip(expected, ends, strict=True)),
        float(np.mean([len(set(tokens)) for tokens in expected])),
        sum(one.tokens == other.tokens for one, other in zip(outputs, alone, strict=True)),
        agreement(open_graphs(checkpoint, "int8", folder / "int8"), sources, prompts, outputs),
    )


def open_graphs(checkpoint: Checkpoint, precision: Precision, folder: Path) -> GraphDecoder:
    """Export into the new `folder` with logits as an output, and open the graphs."""
    folder.mkdir()
    model = quantize(checkpoint.model) if precision == "int8" else checkpoint.model
    write_graphs(folder, model, checkpoint.config.decoding, precision=precision)
    show_logits(folder)
    manifest = manifest_of(checkpoint.config, precision, folder)
    return GraphDecoder(Bundle(folder, manifest), threads=1, logits=True)


def logits_difference(model: Any, checkpoint: Checkpoint, decoder: GraphDecoder) -> float:
    """Largest absolute difference between the logits of cached steps and of transformers."""
    size, rules = checkpoint.config.architecture, checkpoint.config.decoding
    allowed = np.setdiff1d(np.arange(size.target_vocabulary), rules.suppressed_ids)
    rng = np.random.default_rng(0)
    largest = 0.0
    for batch, width in SIZES:
        sources = [rng.integers(4, size.source_vocabulary - 1, max(1, width - row)).tolist() for row in range(batch)]
        targets = rng.integers(4, size.target_vocabulary - 1, (batch, STEPS)).tolist()
        ids, lengths = pad(sources, rules.pad_id)
        visible = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        fed = torch.tensor([[rules.start_id, *row[:-1]] for row in targets])
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=visible, decoder_input_ids=fed).logits.numpy()
        actual = np.stack([step["logits"] for step in decoder.force(sources, targets)], axis=1)
        largest = max(largest, float(np.abs(actual - expected)[..., allowed].max()))
    return largest


def agreement(
    decoder: GraphDecoder,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Decoded],
) -> float:
    """Share of steps at which the decoder, fed with `outputs` as prefixes, chooses the next token of `outputs`."""
    equal = [
        int(step["next_token"][row, 0]) == outputs[start + row].tokens[index]
        for start in range(0, len(sources), ROWS)
        for index, step in enumerate(_forced(decoder, sources, prompts, outputs, start))
        for row in range(len(sources[start : start + ROWS]))
        if index < len(outputs[start + row].log_probs)
    ]
    return float(np.mean(equal))


def _forced(
    decoder: GraphDecoder,
    sources: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Decoded],
    start: int,
) -> Iterator[dict[str, Any]]:
    rows = slice(start, start + ROWS)
    return decoder.force(sources[rows], [output.tokens for output in outputs[rows]], prompts[rows])


def _first_close_step(margins: Sequence[float], steps: int) -> int:
    return next((step for step, margin in enumerate(margins) if margin < MARGIN), steps)


@click.command()
@click.option("--only", type=click.Choice(list(MAKERS)), multiple=True, help="Variants to measure. Default: all.")
@click.option("--texts", type=click.IntRange(1), default=200, show_default=True, help="Texts per variant.")
def main(only: tuple[str, ...], texts: int) -> None:
    """Compare exports of imported checkpoints with transformers."""
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
