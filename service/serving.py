"""The life of a serving process, from the folders of bundles to the last answer.

A signal at any moment stops the server in order (`Server.stop`); a second one ends the process at once.
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
from dragoman.service.loading.loader import (
    LoadedModel,
    Loader,
    check_provider,
    check_runtime,
    find_bundles,
    load_model,
    verify_model,
)
from dragoman.service.loading.replacement import Replacer
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from dragoman.service.system.in_thread import THREAD_NAME, run_in_thread
from dragoman.service.system.process import keep_memory_together
from dragoman.service.telemetry.metrics_http import SCRAPE_THREAD

IMPATIENT_STATUS = 1
"""Exit status after a second signal."""

NEW_OBJECTS = 10_000
"""New objects after which Python collects the youngest garbage; its default is 700."""


def serve(
    settings: ServerSettings,
    folders: Sequence[Path],
    load: Callable[[Bundle, ServerSettings], LoadedModel] = load_model,
    verify: Callable[[Bundle, int], object] = verify_model,
) -> None:
    """Serve the bundles in `folders` until SIGTERM or SIGINT; each folder is a bundle or holds several.

    `load` and `verify` turn a bundle's files into a model, and check it. Raises StartupError if the server cannot
    start, before a port is bound if a bundle is at fault. Exits the process itself if a thread that cannot be
    interrupted is still running.
    """
    keep_memory_together()
    # Reference counts free nearly all that calls leave behind; at the default threshold collections cost a tenth.
    gc.set_threshold(NEW_OBJECTS)
    # A call costs this loop less than asyncio's.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_signal(partial(_life, settings, folders, Loader(settings, load, verify))))
    if any(thread.name.startswith((THREAD_NAME, ENGINE, SCRAPE_THREAD)) for thread in threading.enumerate()):
        # The interpreter would wait for these threads, or end under them while they compute.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _life(settings: ServerSettings, folders: Sequence[Path], loader: Loader, reload: asyncio.Event) -> None:
    """Start, serve, and stop in order once cancelled. `reload` is set when the bundles should be checked."""
    await run_in_thread(partial(check_provider, settings.provider))
    found = [await run_in_thread(partial(loader.find, folder)) for folder in find_bundles(folders)]
    server = Server(settings, *(each.bundle.manifest for each in found))
    try:
        await server.open()
        await run_in_thread(check_runtime)
        server.account.begin()
        for warning in server.warnings:
            _print(warning)
        for each in found:
            await server.add(await run_in_thread(partial(loader.load, each, _print)))
        infos = [model.info for model in server.models.values()]
        metrics = settings.metrics_address, server.metrics_port
        _print(announcement(infos, settings.host, server.port, *metrics, bool(settings.tls_certificate)))
        await Replacer(server, loader, found, settings.watch_seconds).run(reload)
    finally:
        await server.stop(settings.grace_seconds)


async def _until_signal(life: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `life`; the first signal cancels it, a second one ends the process at once. SIGHUP sets its event."""
    reload = asyncio.Event()
    task = asyncio.create_task(life(reload))

    def on_signal() -> None:
        if task.cancelling():
            os._exit(IMPATIENT_STATUS)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    with suppress(asyncio.CancelledError):
        await task


def _print(lines: str) -> None:
    print(lines, flush=True)
