"""Comparison with the reference decoder's tokens, up to the steps that float noise may decide."""

from collections.abc import Mapping, Sequence

import click

from benchmarks.speed.contenders import ROWS, Key
from dragoman.bundle.precision import TOLERANCES
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.verify import first_difference, sure_steps
from dragoman.model.greedy import Output, greedy
from dragoman.model.transformer import Transformer

MARGIN = TOLERANCES["float32"].margin


def reference(
    model: Transformer, rules: DecodingRules, sources: Sequence[Sequence[int]], max_tokens: int
) -> list[Output]:
    """Outputs of the reference decoder of at most `max_tokens` tokens, in the order of `sources`."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    outputs: dict[int, Output] = {}
    for start in range(0, len(order), ROWS):
        batch = order[start : start + ROWS]
        decoded = greedy(model, rules, [sources[index] for index in batch], [max_tokens] * len(batch))
        outputs |= dict(zip(batch, decoded, strict=True))
    return [outputs[index] for index in range(len(sources))]


def check(name: str, found: Sequence[Sequence[int]], expected: Sequence[Output]) -> int:
    """Compare each row up to its first step whose two best logits lie within MARGIN; returns the compared tokens.

    Raises ClickException naming the contender and the row if a row differs before that step.
    """
    compared = 0
    for row, (tokens, output) in enumerate(zip(found, expected, strict=True)):
        comparable = sure_steps(output.margins, MARGIN, len(output.tokens))
        if tuple(tokens[:comparable]) != output.tokens[:comparable]:
            at = first_difference(tokens, output.tokens)
            raise click.ClickException(f"{name}: row {row} differs from the reference from token {at} on")
        compared += comparable
    return compared


def check_all(found: Mapping[Key, Sequence[Sequence[int]]], expected: Sequence[Output], label: str) -> None:
    """Compare every float32 contender with the reference and print the number of compared tokens. See `check`."""
    total = sum(len(output.tokens) for output in expected)
    for (name, precision), tokens in found.items():
        if precision == "float32":
            compared = check(f"{label}: {name}", tokens, expected)
            click.echo(f"{label}: {name}: {compared} of {total} float32 tokens compared, all equal", err=True)


def equal_rows(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> int:
    """Number of rows with identical tokens."""
    return sum(list(a) == list(b) for a, b in zip(left, right, strict=True))


def agreement(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    """Share of equal tokens, by position, of the longer row of each pair."""
    equal = sum(a == b for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=False))
    return round(equal / sum(max(len(one), len(other)) for one, other in zip(left, right, strict=True)), 4)
