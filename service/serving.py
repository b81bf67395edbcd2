"""One process that serves: from the folders of bundles to the last answer.

A signal at any moment stops the server in order (`Server.stop`). A second one ends the process at once.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from dragoman.bundle.manifest import Bundle
from dragoman.service.banner import announcement
from dragoman.service.engine.lane import ENGINE
from dragoman.service.loading.bundles import find_bundles
from dragoman.service.loading.loader import LoadedModel, Loader, load_model, verify_model
from dragoman.service.loading.replacement import Replacer
from dragoman.service.loading.runtime_check import check_provider, check_runtime
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from dragoman.service.system.in_thread import THREAD_NAME, run_in_thread
from dragoman.service.system.tuning import GC_THRESHOLD, limit_malloc_arenas

IMPATIENT_STATUS = 1
"""Exit status after a second signal."""


def serve(
    settings: ServerSettings,
    folders: Sequence[Path],
    load: Callable[[Bundle, ServerSettings], LoadedModel] = load_model,
    verify: Callable[[Bundle, int], object] = verify_model,
) -> None:
    """Serve the bundles in `folders` until SIGTERM or SIGINT; each is a bundle or holds some.

    Raises StartupError if that cannot be done; before a port is bound if a bundle is at fault. `load` and `verify`
    are what stands between a bundle's files and an answer. Leaves the process if work that cannot be interrupted
    is still going on.
    """
    limit_malloc_arenas()
    gc.set_threshold(GC_THRESHOLD)
    # A call costs this loop less than asyncio's own.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_signal(partial(_life, settings, folders, Loader(settings, load, verify))))
    if any(thread.name in (THREAD_NAME, ENGINE) for thread in threading.enumerate()):
        # The interpreter would wait for them, or end under them while they compute.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _life(settings: ServerSettings, folders: Sequence[Path], loader: Loader, asked: asyncio.Event) -> None:
    """All that a server does; cancelled, it stops in order. `asked` is set when new versions are to be looked for."""
    await run_in_thread(partial(check_provider, settings.provider))
    found = [await run_in_thread(partial(loader.find, folder)) for folder in find_bundles(folders)]
    server = Server(settings, *(each.bundle.manifest for each in found))
    try:
        await server.open()
        await run_in_thread(check_runtime)
        server.account.begin()
        for warning in server.warnings:
            _say(warning)
        for each in found:
            await server.add(await run_in_thread(partial(loader.load, each, _say)))
        infos = [model.info for model in server.models.values()]
        metrics = settings.metrics_address, server.metrics_port
        _say(announcement(infos, settings.host, server.port, *metrics, bool(settings.tls_certificate)))
        await Replacer(server, loader, found, settings.watch_seconds).run(asked)
    finally:
        await server.stop(settings.grace_seconds)


async def _until_signal(life: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `life`; the first signal cancels it, a second one ends the process where it stands. SIGHUP sets its event."""
    asked = asyncio.Event()
    task = asyncio.create_task(life(asked))

    def on_signal() -> None:
        if task.cancelling():
            os._exit(IMPATIENT_STATUS)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    with suppress(asyncio.CancelledError):
        await task


def _say(lines: str) -> None:
    print(lines, flush=True)
