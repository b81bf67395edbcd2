import math
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from dragoman.bundle.cpus import allowed_cpus
from dragoman.service import serving
from dragoman.service.cli.serve import serve
from dragoman.service.engine.repetition import Repetition
from dragoman.service.settings import ServerSettings, meaning_of, variable_of

UNITS = (
    "seconds",
    "bytes",
    "tokens",
    "rows",
    "texts",
    "sequences",
    "port",
    "lanes",
    "lane",
    "times",
    "steps",
    "device",
    "calls",
    "second",
)


def options() -> dict[str, click.Option]:
    return {option.name or "": option for option in serve.params if isinstance(option, click.Option)}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings that `dragoman serve` would have started servers with."""
    started: list[ServerSettings] = []
    monkeypatch.setattr(serving, "serve", lambda settings, folder: started.append(settings))
    return started


def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(serve, ["bundle", *arguments], env=env)


def test_each_setting_is_one_option_and_one_variable() -> None:
    assert list(options()) == [field.name for field in fields(ServerSettings)]
    for name, option in options().items():
        assert option.opts == ["--" + name.replace("_", "-")]
        assert option.envvar == "DRAGOMAN_" + name.upper()
        assert option.help == meaning_of(next(f for f in fields(ServerSettings) if f.name == name)).help


def test_defaults_are_those_of_the_settings(started: list[ServerSettings]) -> None:
    assert run().exit_code == 0
    assert started == [ServerSettings()]


def test_numbers_have_their_unit_in_the_name() -> None:
    numbers = [field.name for field in fields(ServerSettings) if field.type is int]
    assert [name for name in numbers if name != "cuda_device" and not name.endswith(UNITS)] == []


@pytest.mark.parametrize("name", [field.name for field in fields(ServerSettings)])
def test_a_variable_does_what_its_option_does(started: list[ServerSettings], name: str) -> None:
    default = getattr(ServerSettings(), name)
    value: object = {str: "cpu", bool: not default, int: 2000, float: 0.25}[type(default)]
    text = str(value).lower()
    flag = f"--{name.replace('_', '-')}"
    arguments = [flag, text]
    if isinstance(value, bool):
        arguments = [flag if value else flag.replace("--", "--no-")]
    if name in ("lanes", "cuda_device", "threads_per_lane", "max_rows", "repetition_tokens"):
        arguments[-1], text, value = "3", "3", 3
    values = {
        "model_weights": "en-fr=2,en-de=0.5",
        "cuda_arena": "double",
        "cudnn_search": "default",
        "log_format": "json",
        "traces_endpoint": "http://127.0.0.1:4317",
    }
    if name in values:
        arguments[-1] = text = value = values[name]
    assert run(*arguments).exit_code == 0
    assert run(env={variable_of(name): text}).exit_code == 0
    assert [getattr(settings, name) for settings in started] == [value, value]


def test_an_option_wins_over_its_variable(started: list[ServerSettings]) -> None:
    assert run("--port", "1", env={"DRAGOMAN_PORT": "2"}).exit_code == 0
    assert started[0].port == 1


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("port", 65536, "port must be at most 65535, is 65536"),
        ("port", -1, "port must be at least 0, is -1"),
        ("max_rows", 0, "max_rows must be at least 1, is 0"),
        ("traces_ratio", 1.5, "traces_ratio must be at most 1, is 1.5"),
        ("traces_ratio", float("nan"), "traces_ratio must be at least 0, is nan"),
        (
            "traces_endpoint",
            "collector:4317",
            "traces_endpoint must begin with http:// or https://, is",
        ),
        ("provider", "gpu", "provider must be one of auto, cpu, cuda, is 'gpu'"),
    ],
)
def test_a_setting_out_of_its_bounds_is_named(name: str, value: object, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        ServerSettings(**{name: value})  # type: ignore[arg-type]


def test_a_misspelt_provider_is_refused_with_the_list(started: list[ServerSettings]) -> None:
    result = run("--provider", "cuda11")
    assert result.exit_code != 0
    assert "'auto', 'cpu', 'cuda'" in result.stderr
    assert not started


def test_a_loop_is_stopped_unless_told_otherwise() -> None:
    assert ServerSettings(repetition_tokens=3, repetition_times=5).limits.repetition == Repetition(3, 5)
    assert ServerSettings().limits.repetition is not None
    assert ServerSettings(repetition_tokens=0).limits.repetition is None


def test_threads_are_those_allowed_unless_told_otherwise() -> None:
    assert ServerSettings().compute_threads == allowed_cpus()
    assert ServerSettings(threads_per_lane=7).compute_threads == 7


@pytest.mark.parametrize(
    ("lanes", "per_lane", "computing", "session"), [(1, 1, 1, 1), (1, 4, 4, 4), (4, 1, 4, 1), (2, 3, 6, 5)]
)
def test_lanes_times_threads_compute(lanes: int, per_lane: int, computing: int, session: int) -> None:
    settings = ServerSettings(lanes=lanes, threads_per_lane=per_lane)
    assert (settings.compute_threads, settings.session_threads) == (computing, session)


def test_lanes_divide_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.service.settings.allowed_cpus", lambda: 5)
    assert [ServerSettings(lanes=lanes).compute_threads for lanes in (1, 2, 5, 8)] == [5, 4, 5, 8]


def test_weights_are_told_by_name() -> None:
    assert ServerSettings(model_weights="en-fr=2, en-de=0.5").weights == {"en-fr": 2.0, "en-de": 0.5}
    assert ServerSettings().weights == {}


@pytest.mark.parametrize("weights", ["en-fr", "=2", "en-fr=0", "en-fr=-1", "en-fr=much", "en-fr=inf", "a=2;b=1"])
def test_weights_that_are_none_are_refused(weights: str) -> None:
    with pytest.raises(ValueError, match=r"^model_weights must be like NAME=2,NAME=1, each weight above 0; has"):
        ServerSettings(model_weights=weights)


NUMBERS = [field.name for field in fields(ServerSettings) if type(field.default) is int]


@bounded(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(NUMBERS), st.integers(-(2**40), 2**40) | st.integers(-2, 2))
def test_a_number_is_within_its_bounds_or_refused_by_name(name: str, number: int) -> None:
    meaning = meaning_of(next(field for field in fields(ServerSettings) if field.name == name))
    low = -math.inf if meaning.minimum is None else meaning.minimum
    high = math.inf if meaning.maximum is None else meaning.maximum
    values: dict[str, Any] = {name: number}
    if low <= number <= high:
        assert getattr(ServerSettings(**values), name) == number
    else:
        with pytest.raises(ValueError, match=rf"^{name} must be at (least|most) -?\d+, is {number}$"):
            ServerSettings(**values)


@bounded(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.text("ab=,. 0123456789einf-\u0661", max_size=12) | st.text(max_size=8))
def test_weights_are_positive_numbers_of_names_or_refused(weights: str) -> None:
    try:
        found = ServerSettings(model_weights=weights).weights
    except ValueError as error:
        assert str(error).startswith("model_weights must be like NAME=2")  # noqa: PT017
    else:
        assert all(name and 0 < weight < math.inf for name, weight in found.items())
