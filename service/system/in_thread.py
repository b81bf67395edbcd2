"""Blocking work off the event loop, on daemon threads that hold up neither the loop nor the process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

THREAD_NAME = "in-thread"
"""Name of each thread that `run_in_thread` starts; the process ends differently while one is alive (`serving.py`)."""

T = TypeVar("T")


async def run_in_thread(job: Callable[[], T]) -> T:
    """The result of `job`, run on a thread of its own; raises its exception.

    Unlike with asyncio.to_thread, a cancelled job delays neither the end of the event loop nor that of the process.
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
        # RuntimeError: the loop has closed, and with it the caller.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=THREAD_NAME, daemon=True).start()
    return await result


async def within(seconds: float, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` ended within `seconds`; if not, it is cancelled."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    return bool(done)
