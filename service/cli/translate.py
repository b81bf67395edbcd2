"""`dragoman translate`: arguments, standard input, or a file."""

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
from dragoman.service.cli.connection import connected, connection_options, reported, source_options, utf8_arguments
from dragoman.service.cli.text_lines import answer_lines, one_line, read_lines

LINES_A_CALL = 64
"""Of a file; enough that the server's batch stays full."""

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class Answer:
    """What came of one text."""

    translation: Translation
    whole_way: bool
    """One model went from the one language to the other, and the numbers of `translation` are its."""


Translate = Callable[[Sequence[str]], Sequence[Answer]]


@click.command(short_help="Translate texts.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--to", default="", metavar="LANGUAGE", help="Language to translate into; needed if there are several.")
@click.option(
    "--max-output-tokens",
    type=click.IntRange(0),
    help="Longest translation, its end token counted; 0 or left out: the model's own limit.",
)
@click.option("--file", "source_file", type=FILE, help="Translate this file, line by line.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where the translation of --file is written."
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
    """Translate each TEXT; without one, each line of standard input; or with --file and --output, a file.

    One line comes out for each line that goes in, in their order, and a line break inside a translation becomes a
    space. Input is UTF-8, and only line feeds end lines.

    A line that is too long ends the work with its number, unless --truncate is set. Nothing before it is lost: from
    standard input it has been printed, from a file it is left in OUTPUT.partial, and OUTPUT is not touched.
    """
    if (source_file is None) != (output is None):
        raise click.UsageError("--file and --output go together.")
    if source_file is not None and texts:
        raise click.UsageError("--file and TEXT exclude each other.")
    with connected(address, timeout_seconds) as client:
        request = partial(
            client.translate, to=to, source=source, model=model, max_output_tokens=max_output_tokens, truncate=truncate
        )
        ask = _Asking(request)
        if source_file is not None and output is not None:
            translate_file(ask, address, source_file, output)
        elif texts:
            _translate_arguments(ask, texts)
        else:
            _translate_stdin(ask)


def translate_file(ask: Translate, address: str, source: Path, target: Path) -> None:
    """Translate the lines of `source` into `target`, which appears whole or not at all.

    Raises ClickException that says where what was done before an error is left.
    """
    aside = target.with_name(target.name + ".partial")
    tally = _Tally()
    try:
        with reported(address), _progress(source) as bar, source.open("rb") as lines, _writing(aside) as out:
            for _, answer in answer_lines(read_lines(lines), LINES_A_CALL, ask):
                print(one_line(answer.translation.text), file=out)
                tally.add(answer.translation)
                bar.update()
        aside.replace(target)
    except OSError as error:
        raise click.ClickException(f"{error.filename or target}: {error.strerror}") from error
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}; the {tally.lines} lines before it are in {aside}") from error
    click.echo(str(tally), err=True)


@dataclass
class _Tally:
    """What became of a file."""

    started: float = field(default_factory=time.monotonic)
    lines: int = 0
    cut: int = 0
    unfinished: int = 0

    def add(self, translation: Translation) -> None:
        self.lines += 1
        self.cut += translation.source_truncated
        self.unfinished += translation.finish_reason is not FinishReason.END

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        whole = f"{self.lines} lines in {seconds:.1f} s"
        if not self.cut and not self.unfinished:
            return whole
        return f"{whole}; {self.cut} were cut, {self.unfinished} translations were stopped at the limit of tokens"


def _progress(source: Path) -> "tqdm[NoReturn]":
    """A bar over the lines of `source`; nothing where stderr is no terminal."""
    with source.open("rb") as lines:
        return tqdm(total=sum(1 for _ in lines), unit="line", disable=None)


def _writing(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


class _Asking:
    """Asks the server, and says once on stderr if it goes through a third language."""

    def __init__(self, request: Callable[[Sequence[str]], TranslateResult]) -> None:
        self._request = request
        self._told = False

    def __call__(self, texts: Sequence[str]) -> list[Answer]:
        result = self._request(texts)
        pivot = result.pivot
        if pivot is not None and not self._told:
            self._told = True
            click.echo(f"through {pivot.language}: by {pivot.model}, then by {result.model}", err=True)
        return [Answer(each, whole_way=pivot is None) for each in result.translations]


def _translate_arguments(ask: Translate, texts: Sequence[str]) -> None:
    for number, answer in enumerate(ask(utf8_arguments(texts)), start=1):
        click.echo(one_line(answer.translation.text).encode())
        _note("text", number, answer)


def _translate_stdin(ask: Translate) -> None:
    for line, answer in answer_lines(read_lines(sys.stdin.buffer), 1, ask):
        click.echo(one_line(answer.translation.text).encode())
        _note("line", line.number, answer)


def _note(what: str, number: int, answer: Answer) -> None:
    translation = answer.translation
    if translation.source_truncated:
        where = f" to {translation.source_tokens} tokens" if answer.whole_way else ""
        click.echo(f"{what} {number} was cut{where}", err=True)
    if translation.finish_reason is not FinishReason.END:
        where = f" at {translation.output_tokens} tokens" if answer.whole_way else ""
        click.echo(f"{what} {number}: the translation was stopped{where}", err=True)
