"""Looks again and again whether the model gets on."""

import asyncio
from collections.abc import Awaitable, Callable

LOOK_SECONDS = 0.25
"""From one look to the next."""


async def watch(
    busy_seconds: Callable[[], float], limit_seconds: float, report: Callable[[bool], Awaitable[None]]
) -> None:
    """Report at each look, until cancelled, whether what is done now has taken longer than `limit_seconds`."""
    while True:
        await report(busy_seconds() > limit_seconds)
        await asyncio.sleep(LOOK_SECONDS)
