"""Long work beside the event loop, on threads that nothing has to wait for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

THREAD_NAME = "aside"
"""What the threads are called."""

T = TypeVar("T")


async def run_in_thread(job: Callable[[], T]) -> T:
    """The result of `job`, run on a thread of its own.

    Unlike asyncio.to_thread, one that is given up holds up neither the event loop's end nor the process's.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: Exception | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, error = None, None
        try:
            value = job()
        except Exception as raised:
            error = raised
        # Where the loop has closed meanwhile, nobody waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=THREAD_NAME, daemon=True).start()
    return await result
