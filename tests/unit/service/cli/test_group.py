from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dragoman.service.cli import group
from dragoman.service.cli.group import ENTRY_POINTS, OWN, SUMMARIES, main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the commands that entry points add."""

    def add(**values: str) -> None:
        entries = [EntryPoint(name, value, ENTRY_POINTS) for name, value in values.items()]
        monkeypatch.setattr(group, "entry_points", lambda **_: entries)

    return add


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch, added: Callable[..., None]) -> None:
    """The command train is there, but its dependency is missing."""
    added(train="dragoman.model.training.command:train")

    def load(entry: EntryPoint) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(EntryPoint, "load", load)


@pytest.mark.usefixtures("uninstalled")
def test_a_missing_dependency_names_the_extra_to_install() -> None:
    result = run("train", "a.tsv", "--minutes", "3", "--help")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "Error: `dragoman train` needs torch, which is not installed: pip install '.[train]' in a clone of dragoman\n"
    )


@pytest.mark.usefixtures("uninstalled")
def test_a_command_with_a_missing_dependency_is_listed() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "train      Train a model." in result.stdout


def test_a_broken_import_of_our_own_is_not_a_missing_extra(added: Callable[..., None]) -> None:
    added(train="dragoman.model.nowhere:train")
    assert isinstance(run("train").exception, ModuleNotFoundError)


def test_help_imports_no_command(added: Callable[..., None]) -> None:
    added(train="dragoman.nowhere:train", export="dragoman.nowhere:export")
    assert "export     Export CHECKPOINT" in run("--help").stdout


def test_an_entry_point_adds_a_command(added: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command(short_help="Greets.")
    def greet() -> None:
        click.echo("hello")

    monkeypatch.setattr(EntryPoint, "load", lambda _: greet)
    added(greet="anything:greet")
    assert "greet      Greets." in run("--help").stdout
    assert run("greet").stdout == "hello\n"


@pytest.mark.parametrize("name", OWN)
def test_summaries_match_those_of_the_commands(name: str) -> None:
    command: click.Command = getattr(import_module(f"dragoman.service.cli.{name}"), name)
    assert command.short_help == SUMMARIES[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "Error: No such command 'nope'. See dragoman --help.\n"),
        (["serve"], "Error: Missing argument 'BUNDLE...'. See dragoman serve --help.\n"),
        (["serve", "x", "--port", "99999"], "See dragoman serve --help.\n"),
        (["translate", "--file", __file__], "Error: --file and --output go together. See dragoman translate --help.\n"),
        (["export", ".", "x", "--texts", "/dev/null"], "holds no text. See dragoman export --help.\n"),
        (["translate", "--file", "/no/such", "--output", "x"], "See dragoman translate --help.\n"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="dragoman")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.endswith(message)
    assert len(result.stderr.splitlines()) == 1


def test_export_texts_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "texts").write_bytes(b"kite\n\xff\n")
    result = CliRunner().invoke(main, ["export", ".", "x", "--texts", str(tmp_path / "texts")], prog_name="dragoman")
    assert result.stderr == f"Error: --texts {tmp_path}/texts: is not UTF-8. See dragoman export --help.\n"


def test_no_command_prints_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Commands:" in result.output
