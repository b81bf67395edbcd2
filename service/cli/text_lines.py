"""Line-by-line input: reads lines, sends them in calls, and yields one answer per line."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import click

from dragoman.client import ClientError, InvalidArgumentError, OverloadedError, UnavailableError
from dragoman.client.retries import RetryBudget, call_with_retries

MAX_RETRIES = 60
"""Retries of one call that a busy server refused, after the client's own."""

MAX_CHARACTERS = 500_000
"""Characters of all texts in one call; the server's limit on messages is some millions of bytes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One line of input."""

    number: int
    """Counts from 1."""
    text: str
    """Without its line feed, and without a carriage return before that."""
    fault: str = ""
    """Why the line cannot be sent; empty if it can."""


class LineError(click.ClickException):
    """A line that failed, after all lines before it were answered."""

    def __init__(self, number: int, fault: str) -> None:
        super().__init__(f"line {number} {fault}")
        self.number = number


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a UTF-8 stream. Only a line feed ends a line; all other characters are part of the text."""
    for number, raw in enumerate(stream, start=1):
        content = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = content.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield Line(number, "", f"is not UTF-8: byte {error.start + 1} is {content[error.start]:#04x}")
        else:
            yield Line(number, text)


def one_line(text: str) -> str:
    """`text` with each line break of any kind replaced by a space."""
    return " ".join(text.splitlines())


def chunks(lines: Iterable[Line], max_lines: int) -> Iterator[list[Line]]:
    """Groups of up to `max_lines` lines that fit in one call; a full group does not wait for the next line."""
    chunk: list[Line] = []
    characters = 0
    for line in lines:
        if chunk and characters + len(line.text) > MAX_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
        chunk.append(line)
        characters += len(line.text)
        if len(chunk) == max_lines:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def answer_lines(
    lines: Iterable[Line], max_lines: int, answer: Callable[[Sequence[str]], Sequence[T]]
) -> Iterator[tuple[Line, T]]:
    """Each line with its answer, in order, up to `max_lines` lines per call of `answer`.

    Raises LineError for the first line that fails, after the answers to all lines before it.
    """
    for chunk in chunks(lines, max_lines):
        sound = list(itertools.takewhile(lambda line: not line.fault, chunk))
        yield from _answer_chunk(sound, answer)
        if len(sound) < len(chunk):
            faulty = chunk[len(sound)]
            raise LineError(faulty.number, faulty.fault)


def _answer_chunk(chunk: Sequence[Line], answer: Callable[[Sequence[str]], Sequence[T]]) -> Iterator[tuple[Line, T]]:
    if not chunk:
        return
    texts = [line.text for line in chunk]
    try:
        yield from zip(chunk, _answer_when_free(answer, texts), strict=True)
    except InvalidArgumentError as error:
        index, fault = _text_at_fault(error)
        if index is None:
            raise
        yield from zip(chunk[:index], _answer_when_free(answer, texts[:index]) if index else (), strict=True)
        raise LineError(chunk[index].number, fault) from error
    except UnavailableError:
        # These lines are not at fault.
        raise
    except ClientError as error:
        if len(chunk) > 1:
            raise LineError(chunk[0].number, f"and the {len(chunk) - 1} after it: {error}") from error
        raise LineError(chunk[0].number, f"failed: {error}") from error


def _answer_when_free(answer: Callable[[Sequence[str]], Sequence[T]], texts: Sequence[str]) -> Sequence[T]:
    """The answer; retries a call that a busy server refused, after the delay that it asks for."""
    budget = RetryBudget(MAX_RETRIES)

    def delay_after(error: ClientError) -> float | None:
        return error.retry_after_seconds if isinstance(error, OverloadedError) and budget.spend() else None

    return call_with_retries(lambda: answer(texts), delay_after)


def _text_at_fault(error: InvalidArgumentError) -> tuple[int | None, str]:
    """Index of the text at fault and its description; None if no text is."""
    for violation in error.violations:
        name, _, index = violation.field.removesuffix("]").partition("[")
        if name == "texts" and index.isdecimal():
            return int(index), violation.description
    return None, ""
