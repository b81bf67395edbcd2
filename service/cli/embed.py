"""`dragoman embed`: one JSON object a text."""

import json
import sys
from collections.abc import Sequence
from functools import partial

import click

from dragoman.client import Client, Embedding, Pooling
from dragoman.service.cli.connection import connected, connection_options, source_options, utf8_arguments
from dragoman.service.cli.text_lines import answer_lines, read_lines


@click.command(short_help="Turn texts into vectors.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--pooling",
    type=click.Choice([pooling.value for pooling in Pooling]),
    help="How the states of a text's tokens become its vector; none: one vector a token.  [default: as the model's "
    "checkpoint says, else mean]",
)
@click.option(
    "--normalize/--no-normalize",
    default=None,
    help="Scale each vector to length 1.  [default: as the model's checkpoint says, else normalize]",
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
    """Turn each TEXT into a vector; without one, each line of standard input.

    One JSON object comes out for each text, in their order: "embedding", "source_tokens" and "source_truncated"; with
    --pooling none, "tokens" in place of "embedding", each with its "id", its "embedding" and the bytes of the text
    that it stands for, from "start_byte" up to "end_byte".
    """
    with connected(address, timeout_seconds) as client:
        ask = partial(_ask, client, source, model, Pooling(pooling) if pooling else None, normalize, truncate)
        if texts:
            for embedding in ask(utf8_arguments(texts)):
                click.echo(to_json(embedding))
        else:
            for _, embedding in answer_lines(read_lines(sys.stdin.buffer), 1, ask):
                click.echo(to_json(embedding))


def to_json(embedding: Embedding) -> str:
    """One line of JSON. Numbers are as short as brings their 32 bits back."""
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


def _ask(
    client: Client,
    source: str,
    model: str,
    pooling: Pooling | None,
    normalize: bool | None,
    truncate: bool,
    texts: Sequence[str],
) -> tuple[Embedding, ...]:
    result = client.embed(texts, source=source, model=model, pooling=pooling, normalize=normalize, truncate=truncate)
    return result.embeddings
