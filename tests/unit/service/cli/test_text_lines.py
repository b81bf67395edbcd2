import io
from collections.abc import Sequence

import grpc
import pytest

from dragoman.client import (
    InvalidArgumentError,
    OverloadedError,
    ServerError,
    TimedOutError,
    UnavailableError,
    Violation,
)
from dragoman.service.cli import text_lines as module
from dragoman.service.cli.text_lines import Line, LineError, answer_lines, chunks, one_line, read_lines


def texts(content: bytes) -> list[str]:
    return [line.text for line in read_lines(io.BytesIO(content))]


def numbered(*found: str) -> list[Line]:
    return [Line(number, text) for number, text in enumerate(found, start=1)]


class Answers:
    """Answers texts in capitals; one that is too long fails its call as the server would fail it."""

    def __init__(self, longest: int = 10) -> None:
        self.calls: list[list[str]] = []
        self.longest = longest

    def __call__(self, texts: Sequence[str]) -> list[str]:
        self.calls.append(list(texts))
        for index, text in enumerate(texts):
            if len(text) > self.longest:
                violation = Violation(f"texts[{index}]", f"has {len(text)} characters, the limit is {self.longest}")
                raise InvalidArgumentError(grpc.StatusCode.INVALID_ARGUMENT, "too long", (violation,))
        return [text.upper() for text in texts]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\n\n\nb\n", ["a", "", "", "b"]),
        (b"a\tb\x0bc\rd\n", ["a\tb\x0bc\rd"]),
        ("a\u2028b\u0085c\n".encode(), ["a\u2028b\u0085c"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("œuf\n".encode(), ["œuf"]),
    ],
)
def test_only_line_feeds_end_lines(content: bytes, expected: list[str]) -> None:
    assert texts(content) == expected


def test_a_line_that_is_not_utf8_is_at_fault_alone() -> None:
    good, bad, after = read_lines(io.BytesIO(b"a\nna\xefve\nb\n"))
    assert bad == Line(2, "", "is not UTF-8: byte 3 is 0xef")
    assert not good.fault
    assert after.text == "b"


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb", "a\x85b"])
def test_an_answer_is_one_line(text: str) -> None:
    assert one_line(text) == "a b"


def test_a_call_is_bounded_in_lines_and_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(chunk) for chunk in chunks(numbered(*"abcde"), 2)] == [2, 2, 1]
    monkeypatch.setattr(module, "MAX_CHARACTERS", 10)
    found = list(chunks(numbered("a" * 6, "b" * 6, "c" * 50, "d", "e"), 9))
    assert [[line.number for line in chunk] for chunk in found] == [[1], [2], [3], [4, 5]]


@pytest.mark.parametrize("max_lines", [1, 2, 64])
def test_answers_are_in_the_order_of_the_lines(max_lines: int) -> None:
    answered = list(answer_lines(numbered(*"abcde"), max_lines, Answers()))
    assert [(line.number, answer) for line, answer in answered] == list(enumerate("ABCDE", start=1))


@pytest.mark.parametrize("max_lines", [1, 2, 3, 64])
@pytest.mark.parametrize("place", range(4))
def test_a_faulty_line_is_named_after_earlier_answers(max_lines: int, place: int) -> None:
    found = ["a", "b", "c", "d"]
    found[place] = "x" * 11
    answered: list[str] = []
    with pytest.raises(LineError) as caught:
        answered.extend(answer for _, answer in answer_lines(numbered(*found), max_lines, Answers()))
    assert answered == ["A", "B", "C", "D"][:place]
    assert caught.value.message == f"line {place + 1} has 11 characters, the limit is 10"


@pytest.mark.parametrize("max_lines", [1, 64])
def test_an_unsendable_line_is_named_after_earlier_answers(max_lines: int) -> None:
    lines = [*numbered("a", "b"), Line(3, "", "is not UTF-8"), Line(4, "d")]
    answers = Answers()
    answered: list[str] = []
    with pytest.raises(LineError, match="line 3 is not UTF-8"):
        answered.extend(answer for _, answer in answer_lines(lines, max_lines, answers))
    assert answered == ["A", "B"]
    assert all("d" not in call for call in answers.calls)


def test_a_refused_call_is_repeated_after_the_given_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    busy = [
        OverloadedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_seconds=wait) for wait in (1.0, 0.5)
    ]

    def answer(texts: Sequence[str]) -> Sequence[str]:
        if busy:
            raise busy.pop(0)
        return texts

    assert [text for _, text in answer_lines(numbered("a"), 1, answer)] == ["a"]
    assert slept == [1.0, 0.5]


def test_a_message_that_is_too_large_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", pytest.fail)

    def answer(texts: Sequence[str]) -> Sequence[str]:
        raise OverloadedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max")

    with pytest.raises(LineError, match="line 1 failed: message larger than max"):
        list(answer_lines(numbered("a"), 1, answer))


def test_lines_that_fail_together_are_named_together() -> None:
    def answer(texts: Sequence[str]) -> Sequence[str]:
        raise TimedOutError(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")

    with pytest.raises(LineError, match="line 1 and the 2 after it: too slow"):
        list(answer_lines(numbered("a", "b", "c"), 64, answer))


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError(grpc.StatusCode.UNAVAILABLE, "no server"),
        InvalidArgumentError(grpc.StatusCode.INVALID_ARGUMENT, "no", (Violation("target_language", "is missing"),)),
    ],
)
def test_errors_unrelated_to_a_line_pass_unchanged(error: ServerError) -> None:
    def answer(texts: Sequence[str]) -> Sequence[str]:
        raise error

    with pytest.raises(type(error)):
        list(answer_lines(numbered("a"), 1, answer))
