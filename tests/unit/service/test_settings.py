import math
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.bundle.cpus import allowed_cpus
from dragoman.service import serving
from dragoman.service.cli.serve import bounds, serve
from dragoman.service.engine.repetition import Repetition
from dragoman.service.settings import ServerSettings, fault_line, variable_of

FIELDS = ServerSettings.model_fields

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
    """The settings passed to the server by each run of `dragoman serve`."""
    started: list[ServerSettings] = []
    monkeypatch.setattr(serving, "serve", lambda settings, folder: started.append(settings))
    return started


def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(serve, ["bundle", *arguments], env=env)


def test_each_setting_is_one_option_and_one_variable() -> None:
    assert list(options()) == list(FIELDS)
    for name, option in options().items():
        assert option.opts == ["--" + name.replace("_", "-")]
        assert option.envvar == "DRAGOMAN_" + name.upper()
        assert option.help == FIELDS[name].description


def test_options_default_to_the_settings_defaults(started: list[ServerSettings]) -> None:
    assert run().exit_code == 0
    assert started == [ServerSettings()]


def test_numbers_have_their_unit_in_the_name() -> None:
    numbers = [name for name, field in FIELDS.items() if field.annotation is int]
    assert [name for name in numbers if name != "cuda_device" and not name.endswith(UNITS)] == []


@pytest.mark.parametrize("name", FIELDS)
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
    for variable in ("2", "x"):
        assert run("--port", "1", env={"DRAGOMAN_PORT": variable}).exit_code == 0
    # Even where it repeats the default.
    assert run("--max-rows", "32", env={"DRAGOMAN_MAX_ROWS": "2"}).exit_code == 0
    assert [(settings.port, settings.max_rows) for settings in started] == [(1, 32), (1, 32), (50051, 32)]


def test_an_empty_variable_counts_as_unset(started: list[ServerSettings]) -> None:
    assert run(env={"DRAGOMAN_PORT": ""}).exit_code == 0
    assert started == [ServerSettings()]


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("port", "65536", "must be at most 65535, is 65536"),
        ("port", "-1", "must be at least 0, is -1"),
        ("port", "1.5", "must be a whole number, is '1.5'"),
        ("max_rows", "0", "must be at least 1, is 0"),
        ("traces_ratio", "1.5", "must be at most 1.0, is 1.5"),
        ("traces_ratio", "nan", "must be at most 1.0, is nan"),
        ("traces_ratio", "half", "must be a number, is 'half'"),
        ("verify", "maybe", "must be true or false, is 'maybe'"),
        ("traces_endpoint", "collector:4317", "must begin with http:// or https://, is 'collector:4317'"),
        ("provider", "gpu", "must be 'auto', 'cpu' or 'cuda', is 'gpu'"),
        ("model_weights", "a=0", "must be like NAME=2,NAME=1, each weight above 0; has 'a=0'"),
    ],
)
def test_a_bad_variable_is_one_line_with_its_bound(
    started: list[ServerSettings], name: str, value: str, fault: str
) -> None:
    result = run(env={variable_of(name): value})
    assert f"\nError: {variable_of(name)} {fault}\n" in result.stderr
    assert (result.exit_code, started) == (2, [])


@pytest.mark.parametrize(
    ("flag", "value", "fault"),
    [
        ("--port", "65536", "65536 is not in the range 0<=x<=65535"),
        ("--provider", "cuda11", "'auto', 'cpu', 'cuda'"),
        ("--model-weights", "a=0", "Error: --model-weights must be like NAME=2,NAME=1, each weight above 0; has 'a=0'"),
        ("--traces-endpoint", "collector:4317", "Error: --traces-endpoint must begin with http:// or https://, is"),
    ],
)
def test_a_bad_option_is_named_with_its_bound(started: list[ServerSettings], flag: str, value: str, fault: str) -> None:
    result = run(flag, value)
    assert flag in result.stderr
    assert fault in result.stderr
    assert (result.exit_code, started) == (2, [])


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ServerSettings().port = 1


def test_loops_are_stopped_by_default() -> None:
    assert ServerSettings(repetition_tokens=3, repetition_times=5).limits.repetition == Repetition(3, 5)
    assert ServerSettings().limits.repetition is not None
    assert ServerSettings(repetition_tokens=0).limits.repetition is None


def test_compute_threads_default_to_the_allowed_processors() -> None:
    assert ServerSettings().compute_threads == allowed_cpus()
    assert ServerSettings(threads_per_lane=7).compute_threads == 7


@pytest.mark.parametrize(
    ("lanes", "per_lane", "computing", "session"), [(1, 1, 1, 1), (1, 4, 4, 4), (4, 1, 4, 1), (2, 3, 6, 5)]
)
def test_compute_threads_are_lanes_times_threads(lanes: int, per_lane: int, computing: int, session: int) -> None:
    settings = ServerSettings(lanes=lanes, threads_per_lane=per_lane)
    assert (settings.compute_threads, settings.session_threads) == (computing, session)


def test_lanes_divide_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.service.settings.allowed_cpus", lambda: 5)
    assert [ServerSettings(lanes=lanes).compute_threads for lanes in (1, 2, 5, 8)] == [5, 4, 5, 8]


def test_weights_are_parsed_by_name() -> None:
    assert ServerSettings(model_weights="en-fr=2, en-de=0.5").weights == {"en-fr": 2.0, "en-de": 0.5}
    assert ServerSettings().weights == {}


@pytest.mark.parametrize("weights", ["en-fr", "=2", "en-fr=0", "en-fr=-1", "en-fr=much", "en-fr=inf", "a=2;b=1"])
def test_malformed_weights_are_refused(weights: str) -> None:
    with pytest.raises(ValueError, match=r"must be like NAME=2,NAME=1, each weight above 0; has"):
        ServerSettings(model_weights=weights)


NUMBERS = [name for name, field in FIELDS.items() if field.annotation is int]


@bounded(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(NUMBERS), st.integers(-(2**40), 2**40) | st.integers(-2, 2))
def test_a_number_is_within_its_bounds_or_refused_by_name(name: str, number: int) -> None:
    minimum, maximum = bounds(FIELDS[name])
    values: dict[str, Any] = {name: number}
    if minimum <= number <= (maximum or math.inf):
        assert getattr(ServerSettings(**values), name) == number
    else:
        with pytest.raises(ValidationError) as caught:
            ServerSettings(**values)
        bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        assert fault_line(caught.value, ()) == f"{variable_of(name)} must be {bound}, is {number}"


@bounded(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.text("ab=,. 0123456789einf-\u0661", max_size=12) | st.text(max_size=8))
def test_weights_are_positive_numbers_of_names_or_refused(weights: str) -> None:
    try:
        found = ServerSettings(model_weights=weights).weights
    except ValidationError as error:
        line = fault_line(error, ["model_weights"])
        assert line.startswith("--model-weights must be like NAME=2")
    else:
        assert all(name and 0 < weight < math.inf for name, weight in found.items())
