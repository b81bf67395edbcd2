"""The engine as a batch job."""

import pytest

from dragoman.bundle.rules import DecodingRules
from dragoman.service.engine.offline import Offline
from dragoman.service.engine.sequence import Finish
from tests.support.fake_runner import END, START, FakeRunner

RULES = DecodingRules(START, (END,), 0, output_factor=0.0, output_margin=3)


def test_results_are_in_the_order_of_the_sources() -> None:
    sources = [(5, END), (6, 7, END), (8, END)]
    with Offline([FakeRunner()], RULES, rows=2) as engine:
        assert [tuple(sequence.tokens) for sequence in engine.run(sources)] == sources


def test_the_limit_defaults_to_that_of_the_rules() -> None:
    with Offline([FakeRunner(endless=[9])], RULES, rows=1) as engine:
        (by_rules,) = engine.run([(9, END)])
        (by_caller,) = engine.run([(9, END)], [7])
    assert (len(by_rules.tokens), by_rules.finish) == (3, Finish.LENGTH)
    assert len(by_caller.tokens) == 7


def test_a_failed_sequence_raises() -> None:
    with (
        Offline([FakeRunner(poison=[4])], RULES, rows=1) as engine,
        pytest.raises(ArithmeticError, match="log-probability is nan"),
    ):
        engine.run([(5, END), (4, END)])


def test_engines_can_share_a_runner_in_turn() -> None:
    runner = FakeRunner()
    for rows in (1, 3):
        with Offline([runner], RULES, rows) as engine:
            engine.run([(5, END)] * 3)
    assert runner.batches == [1, 1, 1, 1, 1, 1, 3, 3]
