"""What is right: the reference decoder's tokens, and where float noise may decide otherwise."""

from collections.abc import Mapping, Sequence

import click

from benchmarks.speed.contenders import ROWS, Key
from dragoman.bundle.precision import TOLERANCES
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.verify import first_difference, sure_steps
from dragoman.model.greedy import Output, greedy
from dragoman.model.transformer import Transformer

MARGIN = TOLERANCES["float32"].margin


def reference(model: Transformer, rules: DecodingRules, sources: Sequence[Sequence[int]], longest: int) -> list[Output]:
    """The reference decoder's outputs of at most `longest` tokens, in the order of `sources`."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    found: dict[int, Output] = {}
    for start in range(0, len(order), ROWS):
        batch = order[start : start + ROWS]
        outputs = greedy(model, rules, [sources[index] for index in batch], [longest] * len(batch))
        found |= dict(zip(batch, outputs, strict=True))
    return [found[index] for index in range(len(sources))]


def check(name: str, found: Sequence[Sequence[int]], right: Sequence[Output]) -> int:
    """How many tokens were compared: each row up to its first step whose two best logits lie within MARGIN.

    Raises ClickException that names the contender and the row which differs before that.
    """
    compared = 0
    for row, (tokens, output) in enumerate(zip(found, right, strict=True)):
        sure = sure_steps(output.margins, MARGIN, len(output.tokens))
        if tuple(tokens[:sure]) != output.tokens[:sure]:
            at = first_difference(tokens, output.tokens)
            raise click.ClickException(f"{name}: row {row} gives other tokens than the reference, from token {at} on")
        compared += sure
    return compared


def check_all(found: Mapping[Key, Sequence[Sequence[int]]], right: Sequence[Output], where: str) -> None:
    """Hold every contender of float32 against the reference, and say how much was compared. Raises ClickException."""
    total = sum(len(output.tokens) for output in right)
    for (name, precision), tokens in found.items():
        if precision == "float32":
            compared = check(f"{where}: {name}", tokens, right)
            click.echo(f"{where}: {name}: {compared} of {total} float32 tokens compared, all right", err=True)


def alike(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> int:
    """Rows that are equal from end to end."""
    return sum(list(a) == list(b) for a, b in zip(left, right, strict=True))


def agreement(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    """The part of the tokens, of the longer row each, that are alike at their place."""
    same = sum(a == b for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=False))
    return round(same / sum(max(len(one), len(other)) for one, other in zip(left, right, strict=True)), 4)
