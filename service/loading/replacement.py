"""New versions of the bundles that are served: found, tried, and put in the place of the old ones while calls go on."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from dragoman.client.values import ModelInfo
from dragoman.service.errors import StartupError
from dragoman.service.loading.loader import Found, LoadedModel, Loader, Stamp, stamp_of
from dragoman.service.system.in_thread import run_in_thread
from dragoman.service.translation.served_model import ServedModel

log = logging.getLogger(__name__)


class ModelHost(Protocol):
    """Where models are served."""

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """Those that are served now, by name."""

    async def add(self, model: LoadedModel) -> ModelInfo:
        """Serve `model` from now on, in place of the one of its name."""

    def replaced(self, name: str) -> None:
        """Another version of the model `name` has taken its place."""

    def refused(self, name: str) -> None:
        """A version of the model `name` was found that is not fit to take its place."""


@dataclass
class _Place:
    """A folder that a model is served from."""

    name: str
    folder: Path
    tried: Stamp
    """Of the files that are served, or were refused."""
    seen: Stamp
    """Of the files at the latest look."""


class Replacer:
    """Looks after the folders of a server. What is served is told by name: a bundle of another name is refused."""

    def __init__(self, host: ModelHost, loader: Loader, found: Sequence[Found], watch_seconds: float) -> None:
        """`found` is what is served; with `watch_seconds` of 0 one looks only when asked to."""
        self._host = host
        self._loader = loader
        self._watch_seconds = watch_seconds
        self._places = [_Place(each.bundle.manifest.name, each.bundle.folder, each.stamp, each.stamp) for each in found]

    async def run(self, asked: asyncio.Event) -> None:
        """Look again and again, until cancelled; at once where `asked` is set, which is cleared."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._watch_seconds or None):
                    await asked.wait()
            at_once = asked.is_set()
            asked.clear()
            for place in self._places:
                await self._look(place, at_once)

    async def _look(self, place: _Place, at_once: bool) -> None:
        stamp = await run_in_thread(partial(stamp_of, place.folder))
        # Files that have changed since the last look may be changing still.
        still, place.seen = stamp == place.seen, stamp
        if at_once or (still and stamp != place.tried):
            place.tried = stamp
            await self._replace(place)

    async def _replace(self, place: _Place) -> None:
        try:
            if await self._took_over(place):
                self._host.replaced(place.name)
        except StartupError as error:
            log.error("what lies in %s does not take the place of %s: %s", place.folder, place.name, error)
            self._host.refused(place.name)

    async def _took_over(self, place: _Place) -> bool:
        """Whether there was another version; it is served now. Raises StartupError where it is not fit for that."""
        found = await run_in_thread(partial(self._loader.find, place.folder))
        manifest, served = found.bundle.manifest, self._host.models[place.name]
        if manifest.name != place.name:
            raise StartupError(f"it is called {manifest.name}; another model needs another start")
        if manifest.version == served.info.version and served.lifecycle.ready:
            log.info("%s still holds version %s of %s", place.folder, manifest.version, place.name)
            return False
        await self._host.add(await run_in_thread(partial(self._loader.load, found, _note, self._passing)))
        log.info("version %s of %s takes the place of %s", manifest.version, place.name, served.info.version)
        return True

    def _passing(self) -> int:
        held = [model.engine.memory() for model in [*self._host.models.values()]]
        return sum(each.working + each.cache_resident for each in held)


_note: Callable[[str], None] = log.info
