"""How a memory budget is shared out: what is always there comes off first, and the rest is for the models' batches."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.service.errors import StartupError

FOR_CALLS = 16 * 2**20
"""Bytes for messages, texts and tokens of the calls that are answered or wait."""


@dataclass(frozen=True)
class Claim:
    """What one model needs, in bytes."""

    name: str
    weight: float
    """Its share is that of all weights."""
    fixed: float
    """Whatever runs: weights and buffers."""
    least: float
    """For one text at the model's limits, in each lane."""


def shares(budget: int, base: float, claims: Sequence[Claim]) -> dict[str, float]:
    """Bytes for the batches of each model, by name; `base` is what the process holds beside its models.

    Raises StartupError that says how much is needed, where one text at the limits of a model does not fit its share.
    """
    weights = sum(claim.weight for claim in claims)
    taken = base + sum(claim.fixed for claim in claims) + FOR_CALLS
    needed = taken + max(claim.least * weights / claim.weight for claim in claims)
    if budget < needed:
        raise StartupError(
            f"memory_budget_bytes is {budget}, must be at least {needed:.0f}: {taken:.0f} are taken whatever runs, and "
            "each model needs room for one text at its limits"
        )
    return {claim.name: (budget - taken) * claim.weight / weights for claim in claims}
