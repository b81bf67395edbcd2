"""Engines over FakeRunner."""

from collections.abc import Iterator

import pytest

from dragoman.service.engine.engine import Engine
from tests.support.fake_runner import END, FakeRunner
from tests.unit.service.engine.engines import LIMITS, Notes


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner(rows=4, poison=(99,), endless=(98,), broken=(97,))


@pytest.fixture
def engine(runner: FakeRunner, notes: Notes) -> Iterator[Engine]:
    engine = Engine([runner], LIMITS, (END,), notes)
    engine.start()
    yield engine
    runner.gate.set()
    engine.stop()


@pytest.fixture
def pair() -> tuple[FakeRunner, FakeRunner]:
    return FakeRunner(rows=4, endless=(98,)), FakeRunner(rows=4, endless=(98,))


@pytest.fixture
def lanes(pair: tuple[FakeRunner, FakeRunner], notes: Notes) -> Iterator[Engine]:
    engine = Engine(pair, LIMITS, (END,), notes)
    engine.start()
    yield engine
    for runner in pair:
        runner.gate.set()
    engine.stop()
