import random

from benchmarks.reliability.soak import SoakResult, mixed_texts

WORDS = [f"w{number}" for number in range(500)]


def test_text_lengths_range_from_one_word_to_the_maximum() -> None:
    lengths = [len(text.split()) for text in mixed_texts(WORDS, 100, 2000, random.Random(0))]
    assert min(lengths) == 1
    assert max(lengths) == 100
    assert 200 < sum(length < 10 for length in lengths) < 1800


def test_a_maximum_of_one_word_gives_texts_of_one_word() -> None:
    assert {len(text.split()) for text in mixed_texts(WORDS, 1, 50, random.Random(0))} == {1}


def test_growth_compares_the_first_quarter_with_the_last() -> None:
    assert SoakResult((100, 500, 103), idle_share=0.0).growth == 103 / 100 - 1
    assert SoakResult((1000, 5000, 1029), idle_share=0.0199).faults() == []


def test_faults_name_each_exceeded_bound() -> None:
    assert SoakResult((100, 104), idle_share=0.02).faults() == [
        "memory grew by 4.0%, at most 3% allowed",
        "the idle server uses 2.0% of a processor, must be below 2%",
    ]
