"""Replacement of served bundles: detects new versions, checks them, and swaps them in while calls go on."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from dragoman.client.values import ModelInfo
from dragoman.service.errors import StartupError
from dragoman.service.loading.bundles import FoundBundle
from dragoman.service.loading.loader import LoadedModel, Loader
from dragoman.service.system.file_watch import Stamp, folder_stamp
from dragoman.service.system.in_thread import run_in_thread
from dragoman.service.translation.served_model import ServedModel

log = logging.getLogger(__name__)


class ModelHost(Protocol):
    """Serves models, and swaps one for a new version: the side of `Server` that `Replacer` needs."""

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The models served now, by name."""

    async def add(self, model: LoadedModel) -> ModelInfo:
        """Serve `model` from now on, in place of the model of that name."""

    def replaced(self, name: str) -> None:
        """Count a replacement of the model `name`."""

    def refused(self, name: str) -> None:
        """Count a refused version of the model `name`."""


@dataclass
class _WatchedFolder:
    """A folder that a model is served from, and the state of its files."""

    name: str
    folder: Path
    tried: Stamp
    """Stamp of the files that were served or refused last."""
    seen: Stamp
    """Stamp of the files at the last check."""


class Replacer:
    """Watches the folders of a server. A bundle under another name is refused: models are identified by name."""

    def __init__(self, host: ModelHost, loader: Loader, found: Sequence[FoundBundle], watch_seconds: float) -> None:
        """`found` are the bundles served. With `watch_seconds` of 0, checks run only on request."""
        self._host = host
        self._loader = loader
        self._watch_seconds = watch_seconds
        self._folders = [
            _WatchedFolder(each.bundle.manifest.name, each.bundle.folder, each.stamp, each.stamp) for each in found
        ]

    async def run(self, requested: asyncio.Event) -> None:
        """Check every `watch_seconds`, and at once when `requested` is set, until cancelled; clears `requested`."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._watch_seconds or None):
                    await requested.wait()
            at_once = requested.is_set()
            requested.clear()
            for watched in self._folders:
                await self._check(watched, at_once)

    async def _check(self, watched: _WatchedFolder, at_once: bool) -> None:
        stamp = await run_in_thread(partial(folder_stamp, watched.folder))
        # Files that have changed since the last check may still be changing.
        still, watched.seen = stamp == watched.seen, stamp
        if at_once or (still and stamp != watched.tried):
            watched.tried = stamp
            await self._replace(watched)

    async def _replace(self, watched: _WatchedFolder) -> None:
        try:
            if await self._swapped(watched):
                self._host.replaced(watched.name)
        except StartupError as error:
            log.error(
                "could not replace %s from %s; keeping the previous version: %s", watched.name, watched.folder, error
            )
            self._host.refused(watched.name)

    async def _swapped(self, watched: _WatchedFolder) -> bool:
        """Serve the version in the folder. False if it is served already. Raises StartupError if it is refused."""
        found = await run_in_thread(partial(self._loader.find, watched.folder))
        manifest, served = found.bundle.manifest, self._host.models[watched.name]
        if manifest.name != watched.name:
            raise StartupError(f"the bundle is named {manifest.name}; serving another model needs a restart")
        if manifest.version == served.info.version and served.lifecycle.ready:
            log.info(
                "%s is unchanged: version %s of %s is served already", watched.folder, manifest.version, watched.name
            )
            return False
        await self._host.add(await run_in_thread(partial(self._loader.load, found, log.info, self._passing_bytes)))
        log.info("replaced %s: now serving version %s, before %s", watched.name, manifest.version, served.info.version)
        return True

    def _passing_bytes(self) -> int:
        """Memory that the running models hold now and may release at any time."""
        held = [model.engine.memory() for model in [*self._host.models.values()]]
        return sum(each.working + each.cache_resident for each in held)
