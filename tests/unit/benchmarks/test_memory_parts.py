"""Readings and texts of `benchmarks.memory.parts`."""

import pytest

from benchmarks.memory.parts import LONG_WORDS, Reading, long_texts


def test_unexplained_memory_is_a_share() -> None:
    assert Reading("now", resident=200, explained=150).unexplained == pytest.approx(0.25)
    assert Reading("now", resident=200, explained=210).unexplained == pytest.approx(-0.05)


def test_long_texts_are_long_and_distinct() -> None:
    texts = long_texts(["one two three", "four five six seven eight nine ten eleven"], 5)
    assert {len(text.split()) for text in texts} == {LONG_WORDS}
    assert len(set(texts)) == len(texts)
