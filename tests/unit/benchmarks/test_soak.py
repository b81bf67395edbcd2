import random

from benchmarks.reliability.soak import Soaked, mixed_texts

WORDS = [f"w{number}" for number in range(500)]


def test_texts_are_of_every_length_from_one_word_to_the_longest() -> None:
    lengths = [len(text.split()) for text in mixed_texts(WORDS, 100, 2000, random.Random(0))]
    assert min(lengths) == 1
    assert max(lengths) == 100
    assert 200 < sum(length < 10 for length in lengths) < 1800


def test_the_longest_of_one_word_is_one_word() -> None:
    assert {len(text.split()) for text in mixed_texts(WORDS, 1, 50, random.Random(0))} == {1}


def test_growth_is_from_the_first_quarter_to_the_last() -> None:
    assert Soaked((100, 500, 103), idle_share=0.0).growth == 103 / 100 - 1
    assert Soaked((1000, 5000, 1029), idle_share=0.0199).faults() == []


def test_what_is_beyond_its_bound_is_named() -> None:
    assert Soaked((100, 104), idle_share=0.02).faults() == [
        "memory grew by 4.0%, may by 3%",
        "idle, it uses 2.0% of a processor, may use 2%",
    ]
