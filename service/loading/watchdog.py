"""Detects a model that hangs."""

import asyncio
from collections.abc import Awaitable, Callable

CHECK_SECONDS = 0.25
"""Time between two checks."""


async def watch(
    busy_seconds: Callable[[], float], limit_seconds: float, report: Callable[[bool], Awaitable[None]]
) -> None:
    """Report at each check, until cancelled, whether the current run has taken longer than `limit_seconds`."""
    while True:
        await report(busy_seconds() > limit_seconds)
        await asyncio.sleep(CHECK_SECONDS)
