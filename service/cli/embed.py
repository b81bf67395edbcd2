"""`dragoman embed`: one JSON object per text."""

import json
import sys
from collections.abc import Sequence

import click

from dragoman.client import Embedding, Pooling
from dragoman.service.cli.connection import connected, connection_options, source_options, utf8_arguments
from dragoman.service.cli.text_lines import answer_lines, read_lines


@click.command(short_help="Turn texts into vectors.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--pooling",
    type=click.Choice([pooling.value for pooling in Pooling]),
    help="How to combine the states of a text's tokens into its vector; none: one vector per token.  [default: the "
    "checkpoint's own, otherwise mean]",
)
@click.option(
    "--normalize/--no-normalize",
    default=None,
    help="Scale each vector to length 1.  [default: the checkpoint's own, otherwise normalize]",
)
@source_options
@connection_options
def embed(
    texts: tuple[str, ...],
    pooling: str | None,
    normalize: bool | None,
    source: str,
    model: str,
    truncate: bool,
    address: str,
    timeout_seconds: float,
) -> None:
    """Turn each TEXT into a vector or, without TEXT, each line of standard input.

    Prints one JSON object per text, in order, with "embedding", "source_tokens" and "source_truncated".

    With --pooling none, "tokens" replaces "embedding". Each token has its "id", its "embedding" and its bytes in the
    text, from "start_byte" up to but not including "end_byte".
    """
    chosen = Pooling(pooling) if pooling else None
    with connected(address, timeout_seconds) as client:

        def embeddings(batch: Sequence[str]) -> tuple[Embedding, ...]:
            result = client.embed(
                batch, source=source, model=model, pooling=chosen, normalize=normalize, truncate=truncate
            )
            return result.embeddings

        if texts:
            for embedding in embeddings(utf8_arguments(texts)):
                click.echo(to_json(embedding))
        else:
            for _, embedding in answer_lines(read_lines(sys.stdin.buffer), 1, embeddings):
                click.echo(to_json(embedding))


def to_json(embedding: Embedding) -> str:
    """One line of JSON. Each number has the fewest digits that restore its 32 bits."""
    values = [float(str(number)) for number in embedding.values.ravel()]
    counts = {"source_tokens": embedding.source_tokens, "source_truncated": embedding.source_truncated}
    if not embedding.tokens:
        return json.dumps({"embedding": values, **counts})
    width = embedding.values.shape[1]
    tokens = [
        {
            "id": token.id,
            "start_byte": token.start_byte,
            "end_byte": token.end_byte,
            "embedding": values[row * width : (row + 1) * width],
        }
        for row, token in enumerate(embedding.tokens)
    ]
    return json.dumps({"tokens": tokens, **counts})
