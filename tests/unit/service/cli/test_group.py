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
def brought(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which commands other parts bring."""

    def bring(**values: str) -> None:
        entries = [EntryPoint(name, value, ENTRY_POINTS) for name, value in values.items()]
        monkeypatch.setattr(group, "entry_points", lambda **_: entries)

    return bring


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch, brought: Callable[..., None]) -> None:
    """The command train is there, but not what it imports."""
    brought(train="dragoman.model.training.command:train")

    def load(entry: EntryPoint) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(EntryPoint, "load", load)


@pytest.mark.usefixtures("uninstalled")
def test_a_command_whose_part_is_not_installed_says_which_extra_to_install() -> None:
    result = run("train", "a.tsv", "--minutes", "3", "--help")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "Error: `dragoman train` needs torch, which is not installed: pip install 'dragoman[train]'\n"
    )


@pytest.mark.usefixtures("uninstalled")
def test_it_is_listed_all_the_same() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "train      Train a model." in result.stdout


def test_a_fault_in_our_own_imports_is_not_taken_for_a_missing_extra(brought: Callable[..., None]) -> None:
    brought(train="dragoman.model.nowhere:train")
    assert isinstance(run("train").exception, ModuleNotFoundError)


def test_help_imports_no_command(brought: Callable[..., None]) -> None:
    brought(train="dragoman.nowhere:train", export="dragoman.nowhere:export")
    assert "export     Export CHECKPOINT" in run("--help").stdout


def test_a_part_brings_its_own_command(brought: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command(short_help="Greets.")
    def greet() -> None:
        click.echo("hello")

    monkeypatch.setattr(EntryPoint, "load", lambda _: greet)
    brought(greet="anything:greet")
    assert "greet      Greets." in run("--help").stdout
    assert run("greet").stdout == "hello\n"


@pytest.mark.parametrize("name", OWN)
def test_summaries_are_the_commands_own(name: str) -> None:
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
def test_a_wrong_call_is_told_in_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="dragoman")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.endswith(message)
    assert len(result.stderr.splitlines()) == 1


def test_texts_to_prove_an_export_on_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "texts").write_bytes(b"kite\n\xff\n")
    result = CliRunner().invoke(main, ["export", ".", "x", "--texts", str(tmp_path / "texts")], prog_name="dragoman")
    assert result.stderr == f"Error: --texts {tmp_path}/texts: is not UTF-8. See dragoman export --help.\n"


def test_without_a_command_there_is_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Commands:" in result.output
