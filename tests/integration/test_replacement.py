"""Replacement of served bundles: a new version takes over whole and verified, or not at all."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.bundle.manifest import Bundle, open_bundle
from dragoman.service.errors import StartupError
from dragoman.service.loading.bundles import find_bundles
from dragoman.service.loading.loader import LoadedModel, Loader
from dragoman.service.loading.replacement import Replacer
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import FakeRunner
from tests.support.harness import Running, eventually, loaded, loopback, manifest, write_bundle

WATCH_SECONDS = 0.02


def write(folder: Path, weights: str, name: str = "fake") -> str:
    """Write a well-formed bundle without a usable model; returns its version."""
    write_bundle(folder, manifest(name=name), weights)
    return open_bundle(folder).manifest.version


def put_in_place(new: Path, folder: Path) -> None:
    """Replace as the help says: move the served folder away, and give its name to the new one."""
    folder.rename(folder.with_name("former"))
    new.rename(folder)


class WatchedServer:
    """A server whose one bundle is watched, and the versions loaded for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: list[str] = []
        self.while_loading: Callable[[], object] = lambda: None
        self.fault: str | None = None
        self.requested = asyncio.Event()
        self.running: Running

    def load(self, bundle: Bundle, settings: ServerSettings) -> LoadedModel:
        self.read.append(bundle.manifest.version)
        self.while_loading()
        return loaded(FakeRunner(), bundle.manifest)

    def verify(self, bundle: Bundle, threads: int) -> None:
        if self.fault:
            raise StartupError(self.fault)

    @property
    def version(self) -> str:
        return self.running.server.models["fake"].info.version

    def outcome(self, outcome: str) -> float:
        return self.running.value("dragoman_replacements_total", model="fake", outcome=outcome)


@asynccontextmanager
async def watched(folder: Path, watch_seconds: float = WATCH_SECONDS) -> AsyncIterator[WatchedServer]:
    what = WatchedServer(folder)
    loader = Loader(ServerSettings(), what.load, what.verify)
    found = loader.find(folder)
    server = Server(loopback(), found.bundle.manifest)
    await server.open()
    what.running = Running(server, FakeRunner())
    try:
        await server.add(loader.load(found, lambda _: None))
        looking = asyncio.create_task(Replacer(server, loader, [found], watch_seconds).run(what.requested))
        yield what
        assert not looking.done()
        looking.cancel()
    finally:
        await server.stop(1)


async def test_a_watched_bundle_is_replaced_by_itself(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served") as what, what.running.client() as client:
        assert (await client.translate(["kite"])).model_version == first
        second = write(tmp_path / "new", "2")
        put_in_place(tmp_path / "new", what.folder)
        await eventually(lambda: what.version == second)
        result = await client.translate(["kite"])
        assert (result.texts, result.model_version) == (("kite",), second)
        assert (what.outcome("replaced"), what.outcome("refused")) == (1, 0)
        assert what.read == [first, second]


async def test_a_symbolic_link_may_be_redirected(tmp_path: Path) -> None:
    write(tmp_path / "1", "1")
    second = write(tmp_path / "2", "2")
    (tmp_path / "served").symlink_to("1")
    async with watched(tmp_path / "served") as what:
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").rename(tmp_path / "served")
        await eventually(lambda: what.version == second)


async def test_an_unwatched_bundle_is_checked_only_on_request(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served", watch_seconds=0) as what:
        second = write(tmp_path / "new", "2")
        put_in_place(tmp_path / "new", what.folder)
        await asyncio.sleep(10 * WATCH_SECONDS)
        assert what.version == first
        what.requested.set()
        await eventually(lambda: what.version == second)


async def test_the_same_version_is_not_loaded_again(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served") as what:
        shutil.copytree(what.folder, tmp_path / "new")
        put_in_place(tmp_path / "new", what.folder)
        what.requested.set()
        await eventually(lambda: not what.requested.is_set())
        await asyncio.sleep(5 * WATCH_SECONDS)
        assert what.read == [first]
        assert (what.outcome("replaced"), what.outcome("refused")) == (0, 0)


async def test_a_bundle_that_is_being_copied_is_never_loaded(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    second = write(tmp_path / "source", "2")
    async with watched(tmp_path / "served") as what, what.running.client() as client:
        what.folder.rename(tmp_path / "former")
        what.folder.mkdir()
        for file in sorted((tmp_path / "source").iterdir()):
            half = file.read_bytes()[: file.stat().st_size // 2]
            for content in (half, file.read_bytes()):
                (what.folder / file.name).write_bytes(content)
                await asyncio.sleep(3 * WATCH_SECONDS)
                assert (await client.translate(["kite"])).texts == ("kite",)
        await eventually(lambda: what.version == second)
        assert what.read == [first, second]


async def test_a_bundle_that_changes_while_loading_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served", watch_seconds=0) as what:
        write(tmp_path / "2", "2")
        third = write(tmp_path / "3", "3")

        def change() -> None:
            what.while_loading = lambda: None
            shutil.rmtree(tmp_path / "former")
            put_in_place(tmp_path / "3", what.folder)

        what.while_loading = change
        put_in_place(tmp_path / "2", what.folder)
        what.requested.set()
        await eventually(lambda: what.outcome("refused") == 1)
        assert what.version == first
        what.requested.set()
        await eventually(lambda: what.version == third)


def spoil(folder: Path, what: WatchedServer) -> str:
    (folder / "weights.bin").write_text("spoiled")
    return "weights.bin: has 7 bytes, should have 111"


def cut(folder: Path, what: WatchedServer) -> str:
    (folder / "weights.bin").unlink()
    return "weights.bin: missing"


def disprove(folder: Path, what: WatchedServer) -> str:
    what.fault = "the bundle failed its verification: golden answers: text 3 differs"
    return what.fault


def rename(folder: Path, what: WatchedServer) -> str:
    shutil.rmtree(folder)
    write(folder, "2", name="other")
    return "the bundle is named other; serving another model needs a restart"


@pytest.mark.parametrize("harm", [spoil, cut, disprove, rename])
async def test_a_bad_version_is_refused_once_and_the_old_one_stays(
    tmp_path: Path, harm: Callable[[Path, WatchedServer], str], caplog: pytest.LogCaptureFixture
) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served") as what, what.running.client() as client:
        write(tmp_path / "new", "2")
        fault = harm(tmp_path / "new", what)
        with caplog.at_level(logging.ERROR):
            put_in_place(tmp_path / "new", what.folder)
            await eventually(lambda: what.outcome("refused") == 1)
        assert fault in caplog.text
        await asyncio.sleep(5 * WATCH_SECONDS)
        assert (what.outcome("replaced"), what.outcome("refused")) == (0, 1)
        result = await client.translate(["kite"])
        assert (result.texts, result.model_version) == (("kite",), first)
        assert what.running.value("dragoman_ready", model="fake") == 1


# --- folders


def test_a_folder_of_bundles_gives_each_of_them(tmp_path: Path) -> None:
    for name in ("b", "a", ".half"):
        write(tmp_path / "all" / name, "1", name)
    (tmp_path / "all" / "notes").mkdir()
    write(tmp_path / "one", "1", "one")
    found = find_bundles([tmp_path / "one", tmp_path / "all"])
    assert found == [tmp_path / "one", tmp_path / "all" / "a", tmp_path / "all" / "b"]


def test_a_folder_without_bundles_is_returned_itself(tmp_path: Path) -> None:
    assert find_bundles([tmp_path, tmp_path / "nothing"]) == [tmp_path, tmp_path / "nothing"]
