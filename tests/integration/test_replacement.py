"""Bundles that change while they are served: the new version takes over whole and sound, or not at all."""

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
    """A bundle without sense but in order; gives its version."""
    write_bundle(folder, manifest(name=name), weights)
    return open_bundle(folder).manifest.version


def put_in_place(new: Path, folder: Path) -> None:
    """As is told in the help: what is served is moved away, and the new one gets its name."""
    folder.rename(folder.with_name("former"))
    new.rename(folder)


class WatchedFiles:
    """A server whose one bundle is watched, and everything that was loaded for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: list[str] = []
        self.while_loading: Callable[[], object] = lambda: None
        self.fault: str | None = None
        self.asked = asyncio.Event()
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
async def watched(folder: Path, watch_seconds: float = WATCH_SECONDS) -> AsyncIterator[WatchedFiles]:
    what = WatchedFiles(folder)
    loader = Loader(ServerSettings(), what.load, what.verify)
    found = loader.find(folder)
    server = Server(loopback(), found.bundle.manifest)
    await server.open()
    what.running = Running(server, FakeRunner())
    try:
        await server.add(loader.load(found, lambda _: None))
        looking = asyncio.create_task(Replacer(server, loader, [found], watch_seconds).run(what.asked))
        yield what
        assert not looking.done()
        looking.cancel()
    finally:
        await server.stop(1)


async def test_a_new_version_takes_over_by_itself_where_it_is_watched_for(tmp_path: Path) -> None:
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


async def test_a_symbolic_link_may_be_turned(tmp_path: Path) -> None:
    write(tmp_path / "1", "1")
    second = write(tmp_path / "2", "2")
    (tmp_path / "served").symlink_to("1")
    async with watched(tmp_path / "served") as what:
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").rename(tmp_path / "served")
        await eventually(lambda: what.version == second)


async def test_unasked_and_unwatched_nothing_is_looked_for(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served", watch_seconds=0) as what:
        second = write(tmp_path / "new", "2")
        put_in_place(tmp_path / "new", what.folder)
        await asyncio.sleep(10 * WATCH_SECONDS)
        assert what.version == first
        what.asked.set()
        await eventually(lambda: what.version == second)


async def test_the_same_version_is_not_loaded_again(tmp_path: Path) -> None:
    first = write(tmp_path / "served", "1")
    async with watched(tmp_path / "served") as what:
        shutil.copytree(what.folder, tmp_path / "new")
        put_in_place(tmp_path / "new", what.folder)
        what.asked.set()
        await eventually(lambda: not what.asked.is_set())
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


async def test_one_that_changes_while_it_is_loaded_does_not_take_over(tmp_path: Path) -> None:
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
        what.asked.set()
        await eventually(lambda: what.outcome("refused") == 1)
        assert what.version == first
        what.asked.set()
        await eventually(lambda: what.version == third)


def spoil(folder: Path, what: WatchedFiles) -> str:
    (folder / "weights.bin").write_text("spoiled")
    return "weights.bin: has 7 bytes, should have 111"


def cut(folder: Path, what: WatchedFiles) -> str:
    (folder / "weights.bin").unlink()
    return "weights.bin: missing"


def disprove(folder: Path, what: WatchedFiles) -> str:
    what.fault = "the bundle failed its verification: golden answers: text 3 differs"
    return what.fault


def rename(folder: Path, what: WatchedFiles) -> str:
    shutil.rmtree(folder)
    write(folder, "2", name="other")
    return "the bundle is named other; serving another model needs a restart"


@pytest.mark.parametrize("harm", [spoil, cut, disprove, rename])
async def test_a_bad_one_is_refused_told_and_counted_once_and_the_old_one_stays(
    tmp_path: Path, harm: Callable[[Path, WatchedFiles], str], caplog: pytest.LogCaptureFixture
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


def test_a_folder_of_bundles_stands_for_them(tmp_path: Path) -> None:
    for name in ("b", "a", ".half"):
        write(tmp_path / "all" / name, "1", name)
    (tmp_path / "all" / "notes").mkdir()
    write(tmp_path / "one", "1", "one")
    found = find_bundles([tmp_path / "one", tmp_path / "all"])
    assert found == [tmp_path / "one", tmp_path / "all" / "a", tmp_path / "all" / "b"]


def test_a_folder_that_holds_none_is_left_for_its_fault_to_be_told(tmp_path: Path) -> None:
    assert find_bundles([tmp_path, tmp_path / "nothing"]) == [tmp_path, tmp_path / "nothing"]
