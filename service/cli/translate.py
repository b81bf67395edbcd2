"""`dragoman translate`: translates arguments, standard input or a file."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, TextIO

import click
from tqdm import tqdm

from dragoman.client import FinishReason, TranslateResult, Translation
from dragoman.service.cli.connection import (
    FILE,
    connected,
    connection_options,
    reported,
    source_options,
    utf8_arguments,
)
from dragoman.service.cli.text_lines import answer_lines, one_line, read_lines

LINES_PER_CALL = 64
"""Lines of a file in one call: enough to keep the server's batch full."""


@dataclass(frozen=True)
class Answer:
    """The answer to one text."""

    translation: Translation
    direct: bool
    """One model translated the text, so the token counts of `translation` belong to that model."""


Translator = Callable[[Sequence[str]], Sequence[Answer]]


@click.command(short_help="Translate texts.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--to", default="", metavar="LANGUAGE", help="Target language; required if the model has several.")
@click.option(
    "--max-output-tokens",
    type=click.IntRange(0),
    help="Maximum length of a translation, including its end token; 0: the model's own limit, as by default.",
)
@click.option("--file", "source_file", type=FILE, help="File to translate line by line.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write the translation of --file to."
)
@source_options
@connection_options
def translate(
    texts: tuple[str, ...],
    to: str,
    max_output_tokens: int | None,
    source_file: Path | None,
    output: Path | None,
    source: str,
    model: str,
    truncate: bool,
    address: str,
    timeout_seconds: float,
) -> None:
    """Translate each TEXT, or a file with --file and --output, or each line of standard input.

    Each input line gives one output line, in order. A line break inside a translation becomes a space. Input is
    UTF-8, and only line feeds end lines.

    A line that is too long ends the command with an error that names it, unless --truncate is set. The translations
    before it are kept: those of standard input were printed, those of a file are in OUTPUT.partial. OUTPUT itself is
    unchanged.
    """
    if (source_file is None) != (output is None):
        raise click.UsageError("--file and --output go together.")
    if source_file is not None and texts:
        raise click.UsageError("--file and TEXT exclude each other.")
    with connected(address, timeout_seconds) as client:
        request = partial(
            client.translate, to=to, source=source, model=model, max_output_tokens=max_output_tokens, truncate=truncate
        )
        translator = _PivotReporter(request)
        if source_file is not None and output is not None:
            translate_file(translator, address, source_file, output)
        elif texts:
            _translate_arguments(translator, texts)
        else:
            _translate_stdin(translator)


def translate_file(translator: Translator, address: str, source: Path, target: Path) -> None:
    """Translate the lines of `source` into `target`, which appears whole or not at all.

    Raises ClickException that names the file of the translations before an error.
    """
    partial_file = target.with_name(target.name + ".partial")
    tally = _Tally()
    try:
        with reported(address), _progress(source) as bar, source.open("rb") as lines, _writing(partial_file) as out:
            for _, answer in answer_lines(read_lines(lines), LINES_PER_CALL, translator):
                print(one_line(answer.translation.text), file=out)
                tally.add(answer.translation)
                bar.update()
        partial_file.replace(target)
    except OSError as error:
        raise click.ClickException(f"{error.filename or target}: {error.strerror}") from error
    except click.ClickException as error:
        raise click.ClickException(
            f"{error.message}; the {tally.lines} lines before it are in {partial_file}"
        ) from error
    click.echo(str(tally), err=True)


@dataclass
class _Tally:
    """Counts over the lines of a file."""

    started: float = field(default_factory=time.monotonic)
    lines: int = 0
    truncated: int = 0
    stopped: int = 0

    def add(self, translation: Translation) -> None:
        self.lines += 1
        self.truncated += translation.source_truncated
        self.stopped += translation.finish_reason is not FinishReason.END

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        whole = f"{self.lines} lines in {seconds:.1f} s"
        if not self.truncated and not self.stopped:
            return whole
        return f"{whole}; {self.truncated} lines were truncated, {self.stopped} translations were stopped early"


def _progress(source: Path) -> "tqdm[NoReturn]":
    """A progress bar over the lines of `source`; invisible if stderr is no terminal."""
    with source.open("rb") as lines:
        return tqdm(total=sum(1 for _ in lines), unit="line", disable=None)


def _writing(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


class _PivotReporter:
    """Translates texts; reports the first use of a pivot language on stderr."""

    def __init__(self, request: Callable[[Sequence[str]], TranslateResult]) -> None:
        self._request = request
        self._reported = False

    def __call__(self, texts: Sequence[str]) -> list[Answer]:
        result = self._request(texts)
        pivot = result.pivot
        if pivot is not None and not self._reported:
            self._reported = True
            click.echo(f"through {pivot.language}: by {pivot.model}, then by {result.model}", err=True)
        return [Answer(each, direct=pivot is None) for each in result.translations]


def _translate_arguments(translator: Translator, texts: Sequence[str]) -> None:
    for number, answer in enumerate(translator(utf8_arguments(texts)), start=1):
        click.echo(one_line(answer.translation.text).encode())
        _note("text", number, answer)


def _translate_stdin(translator: Translator) -> None:
    for line, answer in answer_lines(read_lines(sys.stdin.buffer), 1, translator):
        click.echo(one_line(answer.translation.text).encode())
        _note("line", line.number, answer)


def _note(unit: str, number: int, answer: Answer) -> None:
    translation = answer.translation
    if translation.source_truncated:
        where = f" to {translation.source_tokens} tokens" if answer.direct else ""
        click.echo(f"{unit} {number} was truncated{where}", err=True)
    if translation.finish_reason is not FinishReason.END:
        where = f" at {translation.output_tokens} tokens" if answer.direct else ""
        click.echo(f"{unit} {number}: the translation was stopped{where}", err=True)
