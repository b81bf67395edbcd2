"""Texts by the line: one line in, one line out, whatever stands in them."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import click

from dragoman.client import ClientError, InvalidArgumentError, OverloadedError, UnavailableError

MAX_TRIES = 60
"""How often a call is sent again because the server was busy."""

MAX_CHARACTERS = 500_000
"""Texts of one call, together; the server's bound on messages is some millions of bytes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One line of input."""

    number: int
    """Counted from 1."""
    text: str
    """Without its end, whether that is a line feed or one after a carriage return."""
    fault: str = ""
    """Why it cannot be sent."""


class LineError(click.ClickException):
    """A line that could not be dealt with; those before it were."""

    def __init__(self, number: int, fault: str) -> None:
        super().__init__(f"line {number} {fault}")
        self.number = number


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a UTF-8 stream. Only a line feed ends one, so that all other characters stay inside texts."""
    for number, raw in enumerate(stream, start=1):
        content = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = content.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield Line(number, "", f"is not UTF-8: byte {error.start + 1} is {content[error.start]:#04x}")
        else:
            yield Line(number, text)


def one_line(text: str) -> str:
    """`text` with every kind of line break inside it as a space."""
    return " ".join(text.splitlines())


def chunks(lines: Iterable[Line], most: int) -> Iterator[list[Line]]:
    """Runs of at most `most` lines that fit in one call; a full one does not wait for the line after it."""
    chunk: list[Line] = []
    characters = 0
    for line in lines:
        if chunk and characters + len(line.text) > MAX_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
        chunk.append(line)
        characters += len(line.text)
        if len(chunk) == most:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def answer_lines(
    lines: Iterable[Line], most: int, answer: Callable[[Sequence[str]], Sequence[T]]
) -> Iterator[tuple[Line, T]]:
    """Each line with its answer, in their order, `most` lines a call.

    Raises LineError for the first line that cannot be answered, after the answers of all before it.
    """
    for chunk in chunks(lines, most):
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
        yield from zip(chunk, _patiently(answer, texts), strict=True)
    except InvalidArgumentError as error:
        index, fault = _text_at_fault(error)
        if index is None:
            raise
        yield from zip(chunk[:index], _patiently(answer, texts[:index]) if index else (), strict=True)
        raise LineError(chunk[index].number, fault) from error
    except UnavailableError:
        # No matter of these lines.
        raise
    except ClientError as error:
        if len(chunk) > 1:
            raise LineError(chunk[0].number, f"and the {len(chunk) - 1} after it: {error}") from error
        raise LineError(chunk[0].number, f"failed: {error}") from error


def _patiently(answer: Callable[[Sequence[str]], Sequence[T]], texts: Sequence[str]) -> Sequence[T]:
    """The answer, asked for again as often as the server says that it is only busy."""
    for _ in range(MAX_TRIES):
        try:
            return answer(texts)
        except OverloadedError as error:
            if error.retry_after_seconds is None:
                raise
            time.sleep(error.retry_after_seconds)
    return answer(texts)


def _text_at_fault(error: InvalidArgumentError) -> tuple[int | None, str]:
    """Which text of the call is at fault, and what is wrong with it; None if it is none of them."""
    for violation in error.violations:
        name, _, index = violation.field.removesuffix("]").partition("[")
        if name == "texts" and index.isdecimal():
            return int(index), violation.description
    return None, ""
