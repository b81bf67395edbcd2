"""`dragoman translate`, `embed` and `info` against a real server."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dragoman.service.cli import main
from tests.support.fake_runner import FakeRunner
from tests.support.harness import MAX_CHARACTERS, Running, free_port, serving, text_of, token_of


async def dragoman(running: Running, *arguments: str, stdin: str | bytes = b"") -> Result:
    def run() -> Result:
        return CliRunner().invoke(main, [*arguments, "--address", running.address], input=stdin, prog_name="dragoman")

    return await asyncio.to_thread(run)


async def test_each_argument_is_one_line_of_output() -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", "--to", "fr", "red kite", "", "old\nboat")
    assert result.exit_code == 0
    assert result.stdout == "red kite\n\nold boat\n"
    assert result.stderr == ""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (b"", ""),
        (b"red kite\nold boat\n", "red kite\nold boat\n"),
        (b"\n\nkite\n\n", "\n\nkite\n\n"),
        (b"red kite\r\nold boat", "red kite\nold boat\n"),
        ("old\tboat\nred\u2028kite\nred\u0085kite\n".encode(), "old boat\nred kite\nred kite\n"),
    ],
)
async def test_each_line_of_stdin_is_one_line_of_output(given: bytes, printed: str) -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", stdin=given)
    assert result.exit_code == 0
    assert result.stdout == printed


async def test_a_line_is_answered_before_the_next_is_read() -> None:
    async with serving() as running:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "dragoman.service.cli", "translate", "--address", running.address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin
        assert process.stdout
        for text in (b"red kite\n", b"\n", b"old boat\n"):
            process.stdin.write(text)
            assert await asyncio.wait_for(process.stdout.readline(), 30) == text
        process.stdin.close()
        assert await process.wait() == 0


async def test_a_closed_output_pipe_is_silent() -> None:
    async with serving() as running:
        command = (
            f"yes kite | {sys.executable} -m dragoman.service.cli translate --address {running.address} | head -n 2"
        )
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert stdout == b"kite\nkite\n"
    assert stderr == b""


async def test_an_overlong_line_is_named_after_earlier_answers() -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", stdin=f"red kite\n\n{text_of(25)}\nold boat\n".encode())
    assert result.exit_code == 1
    assert result.stdout == "red kite\n\n"
    assert result.stderr == "Error: line 3 has 25 tokens, the limit is 24; shorten it or set truncate\n"


async def test_an_overlong_line_is_truncated_on_request() -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", "--truncate", stdin=f"kite\n{text_of(25)}\n".encode())
    assert result.exit_code == 0
    assert result.stdout == f"kite\n{text_of(24)}\n"
    assert result.stderr == "line 2 was truncated to 24 tokens\n"


async def test_a_stopped_translation_is_reported() -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", "--max-output-tokens", "1", "red kite")
    assert (result.exit_code, result.stdout) == (0, "red\n")
    assert result.stderr == "text 1: the translation was stopped at 1 tokens\n"


async def test_input_that_is_not_utf8_is_named() -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", stdin=b"kite\nna\xefve\n")
    assert (result.exit_code, result.stdout) == (1, "kite\n")
    assert result.stderr == "Error: line 2 is not UTF-8: byte 3 is 0xef\n"


# --- files


async def test_a_file_is_translated_line_for_line(tmp_path: Path) -> None:
    lines = [f"red kite {number}" if number % 7 else "" for number in range(300)]
    (source := tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    target = tmp_path / "out.txt"
    async with serving() as running:
        result = await dragoman(running, "translate", "--file", str(source), "--output", str(target))
        calls = running.value("dragoman_phase_seconds_count", model="fake", phase="tokenize")
    assert result.exit_code == 0, result.stderr
    assert target.read_text().splitlines() == lines
    assert result.stderr.startswith("300 lines in ")
    assert len(result.stderr.splitlines()) == 1
    assert 1 < calls < 20, "many lines a call"
    assert names(tmp_path) == ["in.txt", "out.txt"]


async def test_an_empty_file_gives_an_empty_file(tmp_path: Path) -> None:
    (source := tmp_path / "in.txt").touch()
    async with serving() as running:
        result = await dragoman(running, "translate", "--file", str(source), "--output", str(tmp_path / "out.txt"))
    assert result.exit_code == 0
    assert (tmp_path / "out.txt").read_bytes() == b""


async def test_translations_before_an_error_are_in_the_partial_file(tmp_path: Path) -> None:
    (source := tmp_path / "in.txt").write_text("kite\nboat\n" * 50 + "." * (MAX_CHARACTERS + 1) + "\nbird\n")
    (target := tmp_path / "out.txt").write_text("as it was")
    async with serving() as running:
        result = await dragoman(running, "translate", "--file", str(source), "--output", str(target))
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: line 101 has 201 characters, the limit is 200; shorten it or set truncate; "
        f"the 100 lines before it are in {target}.partial\n"
    )
    assert target.read_text() == "as it was"
    assert (tmp_path / "out.txt.partial").read_text() == "kite\nboat\n" * 50


async def test_truncated_lines_of_a_file_are_counted(tmp_path: Path) -> None:
    (source := tmp_path / "in.txt").write_text(f"kite\n{text_of(30)}\n")
    async with serving() as running:
        result = await dragoman(
            running, "translate", "--truncate", "--file", str(source), "--output", str(tmp_path / "out.txt")
        )
    assert result.exit_code == 0
    assert "1 lines were truncated, 0 translations were stopped early" in result.stderr


async def test_an_unwritable_output_is_named(tmp_path: Path) -> None:
    (source := tmp_path / "in.txt").write_text("kite\n")
    target = tmp_path / "nowhere" / "out.txt"
    async with serving() as running:
        result = await dragoman(running, "translate", "--file", str(source), "--output", str(target))
    assert result.exit_code == 1
    assert result.stderr == f"Error: {target}.partial: No such file or directory\n"


# --- embed, info and errors


async def test_embeddings_are_json_lines() -> None:
    async with serving() as running:
        result = await dragoman(running, "embed", "--no-normalize", "kite", "")
    kite, blank = map(json.loads, result.stdout.splitlines())
    token = token_of("kite")
    assert kite == {"embedding": [(token + 2) / 2, 0.5, 1.0], "source_tokens": 2, "source_truncated": False}
    assert blank == {"embedding": [2.0, 0.0, 1.0], "source_tokens": 1, "source_truncated": False}


async def test_each_token_has_its_bytes_without_pooling() -> None:
    async with serving() as running:
        result = await dragoman(running, "embed", "--pooling", "none", "--no-normalize", stdin="red kite\n")
    (line,) = result.stdout.splitlines()
    tokens = json.loads(line)["tokens"]
    assert [(token["start_byte"], token["end_byte"]) for token in tokens] == [(0, 3), (3, 8), (8, 8)]
    assert [token["embedding"] for token in tokens] == [[token["id"], place, 1] for place, token in enumerate(tokens)]


async def test_numbers_have_the_fewest_digits_that_restore_them() -> None:
    async with serving() as running:
        result = await dragoman(running, "embed", "kite")
    assert all(len(str(number)) < 14 for number in json.loads(result.stdout)["embedding"])


async def test_info_is_a_table() -> None:
    async with serving() as running:
        result = await dragoman(running, "info")
    assert result.exit_code == 0
    rows = dict(line.split("  ", 1) for line in result.stdout.splitlines() if line)
    assert {name: value.strip() for name, value in rows.items() if name in ("model", "from", "to", "provider")} == {
        "model": "fake",
        "from": "en",
        "to": "fr",
        "provider": "FakeExecutionProvider",
    }
    assert rows["resident memory"].endswith(" MiB")


@pytest.mark.parametrize("command", [["translate", "kite"], ["embed", "kite"], ["info"]])
def test_a_missing_server_is_reported_in_one_line(command: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    result = CliRunner().invoke(main, [*command, "--address", address])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {address} does not answer: ")
    assert result.stderr.endswith("(`dragoman serve BUNDLE` starts a server)\n")
    assert len(result.stderr.splitlines()) == 1


async def test_a_server_error_is_one_line() -> None:
    async with serving() as running:
        result = await dragoman(running, "translate", "--to", "xx", "kite")
    assert result.exit_code == 1
    assert result.stderr == "Error: target_language 'xx' is not known; this model has fr\n"


async def test_a_timeout_is_one_line() -> None:
    runner = FakeRunner()
    async with serving(runner) as running:
        runner.gate.clear()
        result = await dragoman(running, "translate", "--timeout-seconds", "0.2", "kite")
    assert result.exit_code == 1
    assert result.stderr == "Error: Deadline Exceeded\n"


def test_an_argument_that_is_not_utf8_is_named() -> None:
    command: list[str | bytes] = [sys.executable, "-m", "dragoman.service.cli", "translate", b"na\xefve"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == "Error: TEXT 1 is not UTF-8. See dragoman translate --help.\n"
