"""Division of a memory budget: fixed use comes off first, and the rest is shared among the models' batches."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.service.errors import StartupError

FOR_CALLS = 16 * 2**20
"""Bytes for messages, texts and tokens of running and queued calls."""


@dataclass(frozen=True)
class Claim:
    """Memory needs of one model, in bytes."""

    name: str
    weight: float
    """Its share of the rest is `weight` over the sum of all weights."""
    fixed: float
    """Use at any load: weights and buffers."""
    least: float
    """Use by one text at the model's limits, in each lane."""


def shares(budget: int, base: float, claims: Sequence[Claim]) -> dict[str, float]:
    """Bytes for the batches of each model, by name; `base`: use of the process without its models.

    Raises StartupError that gives the least budget, if one text at a model's limits does not fit its share.
    """
    weights = sum(claim.weight for claim in claims)
    taken = base + sum(claim.fixed for claim in claims) + FOR_CALLS
    needed = taken + max(claim.least * weights / claim.weight for claim in claims)
    if budget < needed:
        raise StartupError(
            f"memory_budget_bytes is {budget}, must be at least {needed:.0f}: {taken:.0f} are in use at any load, and "
            "each model needs room for one text at its limits"
        )
    return {claim.name: (budget - taken) * claim.weight / weights for claim in claims}
