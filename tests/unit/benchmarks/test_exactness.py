import random

from benchmarks.quality.exactness import Answer, Counts, among_others, bursts, compare
from dragoman.bundle.rules import DecodingRules
from dragoman.service.engine.offline import Offline
from tests.support.fake_runner import END, START, FakeRunner, log_prob_of


def test_equal_tokens_and_bit_equal_scores_are_counted() -> None:
    expected = [Answer((5,), -0.5), Answer((6,), -0.5), Answer((7,), -0.5)]
    found = [Answer((5,), -0.5), Answer((6,), -0.25), Answer((8,), -0.5)]
    assert compare(expected, found) == Counts(compared=3, tokens=2, bits=1)


def test_bursts_hold_each_number_once_within_the_size_limit() -> None:
    found = list(bursts(100, 7, random.Random(0)))
    assert sorted(number for burst in found for number in burst) == list(range(100))
    assert max(map(len, found)) <= 7
    assert min(map(len, found)) >= 1


def test_answers_keep_the_order_of_the_sources() -> None:
    runner = FakeRunner()
    sources = [(*range(3, 4 + number % 5), END) for number in range(40)]
    with Offline([runner], DecodingRules(START, (END,), 0), rows=4) as engine:
        found = among_others(engine, sources, rows=4, seed=1)
    assert [answer.tokens for answer in found] == sources
    assert [answer.score for answer in found] == [sum(map(log_prob_of, source)) for source in sources]
    assert max(runner.batches) == 4
