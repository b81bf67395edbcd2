"""Several models in one server, and new versions of them while it serves."""

import asyncio
import dataclasses
import threading
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest

from dragoman.bundle.manifest import Manifest
from dragoman.client import InvalidArgumentError, NotFoundError, UnavailableError
from dragoman.service.engine.runner import RowInput
from dragoman.service.engine.step import Step
from dragoman.service.errors import StartupError
from dragoman.service.server import Server
from dragoman.service.settings import ServerSettings
from tests.integration.test_health import NOT_SERVING, SERVICE, SERVING, status
from tests.support.fake_runner import END, FakeRunner
from tests.support.harness import (
    PATIENCE_SECONDS,
    Running,
    encoder_manifest,
    eventually,
    loaded,
    loopback,
    manifest,
    sentences,
    token_of,
    tokenizer,
)

FRENCH = manifest(name="en-fr", target_languages=("fr",))
GERMAN = manifest(name="en-de", target_languages=("de",))


class Backwards(FakeRunner):
    """Outputs the words of a source in reverse order."""

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        super().insert([(*reversed(source[:-1]), END) for source in sources], first_row)


def backwards(text: str) -> str:
    """Output of Backwards for `text`."""
    return tokenizer().decode([*reversed(tokenizer().encode(text)[:-1])])


def version(number: int) -> Manifest:
    return dataclasses.replace(FRENCH, version=f"{number:012x}")


@asynccontextmanager
async def several(
    *models: tuple[FakeRunner, Manifest], settings: ServerSettings | None = None
) -> AsyncIterator[Running]:
    server = Server(loopback(settings), *(what for _, what in models))
    await server.open()
    try:
        for runner, what in models:
            await server.add(loaded(runner, what))
        yield Running(server, models[0][0])
    finally:
        for runner, _ in models:
            runner.gate.set()
        await server.stop(1)


async def test_a_model_is_chosen_by_name_or_by_languages() -> None:
    async with several((FakeRunner(), FRENCH), (Backwards(), GERMAN)) as running, running.client() as client:
        french = await client.translate(["red kite"], to="fr")
        german = await client.translate(["red kite"], to="de", source="en")
        named = await client.translate(["red kite"], model="en-de")
        assert (french.texts, french.model) == (("red kite",), "en-fr")
        assert (german.texts, german.model) == (("kite red",), "en-de")
        assert (named.texts, named.model) == (german.texts, german.model)
        with pytest.raises(InvalidArgumentError, match="'es' from 'en' is not offered; this server has en-fr"):
            await client.translate(["kite"], source="en", to="es")
        with pytest.raises(NotFoundError, match="model is missing; this server has en-de, en-fr"):
            await client.embed(["kite"])
        assert [each.name for each in (await client.info()).models] == ["en-fr", "en-de"]
        for name, texts in (("en-fr", 1), ("en-de", 2)):
            language = name[-2:]
            labels = {"model": name, "operation": "translate", "target_language": language}
            assert running.value("dragoman_texts_total", **labels) == texts


async def test_an_embedding_model_serves_beside_a_translation_model() -> None:
    embeds = dataclasses.replace(encoder_manifest(), name="embeds", source_languages=("de",))
    async with several((FakeRunner(), FRENCH), (FakeRunner(), embeds)) as running, running.client() as client:
        assert (await client.translate(["kite"], to="fr")).model == "en-fr"
        assert (await client.embed(["kite"], source="de")).model == "embeds"
        assert (await client.embed(["kite"], model="en-fr")).model == "en-fr"


async def test_health_covers_each_model_and_all_together() -> None:
    server = Server(loopback(), FRENCH, GERMAN)
    await server.open()
    running = Running(server, FakeRunner())
    try:
        async with grpc.aio.insecure_channel(running.address) as channel, running.client() as client:
            await server.add(loaded(FakeRunner(), FRENCH))
            for name in ("", SERVICE, f"{SERVICE}/en-fr", f"{SERVICE}/en-de"):
                assert await status(channel, name) == NOT_SERVING
            with pytest.raises(UnavailableError, match="the server is starting"):
                await client.translate(["kite"], to="fr")
            await server.add(loaded(FakeRunner(), GERMAN))
            for name in ("", SERVICE, f"{SERVICE}/en-fr", f"{SERVICE}/en-de"):
                assert await status(channel, name) == SERVING
    finally:
        await server.stop(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_broken_model_affects_no_other_and_can_be_replaced() -> None:
    broken = FakeRunner(poison=(token_of("boat"),))

    def raises(row: int) -> None:
        raise RuntimeError("broken")

    broken.clear_row = raises  # type: ignore[method-assign]
    async with several((broken, FRENCH), (FakeRunner(), GERMAN)) as running, running.client() as client:
        channel = grpc.aio.insecure_channel(running.address)
        async with channel:
            with pytest.raises(Exception, match="the model failed"):
                await client.translate(["boat"], to="fr")
            await eventually(lambda: running.value("dragoman_ready", model="en-fr") == 0)
            assert await status(channel, f"{SERVICE}/en-fr") == NOT_SERVING
            assert await status(channel, f"{SERVICE}/en-de") == SERVING
            assert await status(channel, "") == NOT_SERVING
            with pytest.raises(UnavailableError, match="the engine has stopped"):
                await client.translate(["kite"], to="fr")
            assert (await client.translate(["kite"], to="de")).texts == ("kite",)
            await running.server.add(loaded(FakeRunner(), version(1)))
            assert await status(channel, "") == SERVING
            assert (await client.translate(["kite"], to="fr")).model_version == version(1).version


class Meter:
    """Counts the runners that compute at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.peak = 0

    def count(self, change: int) -> None:
        with self._lock:
            self._now += change
            self.peak = max(self.peak, self._now)


class Metered(FakeRunner):
    """Slow, and counted by a shared meter."""

    def __init__(self, meter: Meter, endless: tuple[int, ...] = ()) -> None:
        super().__init__(endless=endless)
        self._meter = meter

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        self._meter.count(1)
        time.sleep(0.002)
        self._meter.count(-1)
        return super().step(rows, only, scored)


async def test_a_busy_model_does_not_starve_another_in_one_lane() -> None:
    meter = Meter()
    busy, other = Metered(meter, endless=(token_of("dog"),)), Metered(meter)
    async with several((busy, FRENCH), (other, GERMAN)) as running, running.client() as client:
        calls = [asyncio.create_task(client.translate(["dog"] * 64, to="fr")) for _ in range(8)]
        await eventually(busy.stepping.is_set)
        for _ in range(5):
            assert (await client.translate(["kite"], to="de")).texts == ("kite",)
        assert not all(call.done() for call in calls), "the busy model must stay busy throughout"
        await asyncio.gather(*calls)
    assert meter.peak == 1


async def test_two_bundles_of_the_same_name_are_refused() -> None:
    with pytest.raises(StartupError, match=r"^2 bundles have the name 'en-fr'; names of models must be unique$"):
        Server(loopback(), FRENCH, FRENCH)


async def test_a_weight_for_an_unknown_model_is_refused() -> None:
    with pytest.raises(StartupError, match=r"^model_weights names 'nope', which is not served; the models are en-fr$"):
        Server(ServerSettings(model_weights="nope=2"), FRENCH)


# --- replacement


async def test_running_calls_finish_on_their_own_version() -> None:
    former = FakeRunner()
    async with several((former, version(1))) as running, running.client() as client:
        former.gate.clear()
        begun = asyncio.create_task(client.translate(["red kite"]))
        await eventually(former.stepping.is_set)
        # The former version holds the only engine share, so the new one answers after it.
        await running.server.add(loaded(Backwards(), version(2)))
        after = asyncio.create_task(client.translate(["red kite"]))
        former.gate.set()
        first, second = await begun, await after
        assert (first.texts, first.model_version) == (("red kite",), version(1).version)
        assert (second.texts, second.model_version) == (("kite red",), version(2).version)
        assert [each.version for each in (await client.info()).models] == [version(2).version]


async def test_a_replaced_version_is_freed() -> None:
    server = Server(loopback(), version(1))
    await server.open()
    running = Running(server, FakeRunner())
    try:
        former = FakeRunner()
        gone = weakref.ref(former)
        await server.add(loaded(former, version(1)))
        del former
        async with running.client() as client:
            await client.translate(["kite"])
        await server.add(loaded(FakeRunner(), version(2)))
        await eventually(lambda: gone() is None)
        assert sum(thread.name == "engine" for thread in threading.enumerate()) == 1
        versions = {
            sample.labels["version"]
            for family in server.registry.collect()
            for sample in family.samples
            if sample.name == "dragoman_model_info"
        }
        assert versions == {version(2).version}
    finally:
        await server.stop(1)


async def test_no_call_fails_during_20_replacements() -> None:
    """Even versions repeat the words, odd ones reverse them: an answer shows its version."""
    texts = [text for text in sentences(200, seed=5) if len(text.split()) <= 4][:64]
    assert len(texts) == 64
    versions = [version(number) for number in range(21)]
    embeds = dataclasses.replace(encoder_manifest(), name="embeds", source_languages=("de",))
    answers: list[tuple[str, int]] = []
    over = asyncio.Event()

    async with several((FakeRunner(), versions[0]), (FakeRunner(), GERMAN), (FakeRunner(), embeds)) as running:

        async def call_repeatedly(place: int) -> None:
            async with running.client() as client:
                while not over.is_set():
                    text = texts[place]
                    if place % 4 == 1:
                        assert (await client.translate([text], to="de")).texts == (text,)
                        continue
                    if place % 4 == 2:
                        assert (await client.embed([text], source="de")).model == "embeds"
                        continue
                    result = await client.translate([text], to="fr")
                    number = int(result.model_version, 16)
                    assert result.texts == (backwards(text) if number % 2 else text,)
                    answers.append((text, number))

        async with asyncio.timeout(4 * PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            for place in range(64):
                group.create_task(call_repeatedly(place))
            for number in range(1, 21):
                before = len(answers)
                while len(answers) < before + 16:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                runner = Backwards() if number % 2 else FakeRunner()
                await running.server.add(loaded(runner, versions[number]))
            while answers[-1][1] != 20:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            over.set()
        assert {number for _, number in answers} == set(range(21))
        await eventually(lambda: sum(thread.name == "engine" for thread in threading.enumerate()) == 3)
