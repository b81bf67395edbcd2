"""What a text gets does not depend on who is decoded beside it, nor on who had its slot before."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from dragoman.bundle.graph_decoder import GraphDecoder, decode_alone
from dragoman.bundle.manifest import Bundle, Manifest
from dragoman.export.graph_writer import dimensions_of, write_graphs
from dragoman.model.checkpoint import Checkpoint
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.runner import RowInput
from dragoman.service.engine.sequence import Finish
from tests.parity.test_engine import Source, run, runner_of, sources, start
from tests.support.tiny import TINY, random_model, tiny_rules

OVERFLOWING = 7
"""A word whose states, and so whose logits, are no numbers."""

LONG = "The small old dog sings under the quick blue river near the red house and falls over a stone."


@pytest.mark.parametrize("longest", [1, 60], ids=["the long one ends first", "the long one ends last"])
def test_all_orders_of_unlike_texts_give_each_the_same(bundle: Bundle, checkpoint: Checkpoint, longest: int) -> None:
    texts = ("7.", "EUR 18.10", "kite", "?", LONG)
    asked = [(tuple(checkpoint.tokenizer.encode(text)), longest if text == LONG else 12) for text in texts]
    decoder = GraphDecoder(bundle, threads=1)
    alone = decode_alone(decoder, [source for source, _ in asked], [limit for _, limit in asked])
    engine = start(bundle, runner_of(bundle, 4), 4)
    try:
        for order in itertools.permutations(range(len(texts))):
            found = run(engine, [asked[place] for place in order])
            for place, text in zip(order, found, strict=True):
                assert tuple(text.tokens) == alone[place].tokens
                assert text.log_prob == sum(alone[place].log_probs)
    finally:
        engine.stop()


def test_the_shortest_beside_the_longest_that_the_model_reads(bundle: Bundle) -> None:
    longest = bundle.manifest.decoding.max_source_tokens
    asked = [(2,), (5, 2), (*range(10, 9 + longest), 2), (2,)]
    alone = decode_alone(GraphDecoder(bundle, threads=1), asked, [30] * 4)
    engine = start(bundle, runner_of(bundle, 4), 4)
    try:
        found = run(engine, [(source, 30) for source in asked])
    finally:
        engine.stop()
    assert [tuple(text.tokens) for text in found] == [output.tokens for output in alone]
    assert [text.log_prob for text in found] == [sum(output.log_probs) for output in alone]
    assert np.isfinite([text.log_prob for text in found]).all()


@pytest.fixture(scope="module")
def rigged(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Graphs of a model that one source word makes overflow. No export would prove it, so none is asked."""
    folder = tmp_path_factory.mktemp("rigged")
    architecture = dataclasses.replace(TINY, shared_embedding=False)
    model, rules = random_model(architecture), tiny_rules(architecture)
    with torch.no_grad():
        model.source_embedding.tokens.weight[OVERFLOWING] = torch.finfo(torch.float32).max
    write_graphs(folder, model, rules)
    manifest = Manifest(
        format_version=1,
        name="rigged",
        version="0" * 12,
        family="transformer",
        source_languages=("en",),
        target_languages=("fr",),
        precision="float32",
        dimensions=dimensions_of(architecture),
        decoding=rules,
        max_source_characters=1000,
        files=(),
    )
    return Bundle(folder, manifest)


def with_word(source: Source) -> Source:
    return (*source[:-1], OVERFLOWING, source[-1])


def fill_free_slots(runner: OrtRunner, used: int, value: float) -> None:
    for cache in (runner._cross, runner._past):
        for array in cache.arrays.values():
            array[used:] = value


def test_a_text_that_overflows_fails_alone_and_the_next_user_of_its_slot_is_right(rigged: Bundle) -> None:
    sound = [source for source in sources(24, longest=20, seed=3) if OVERFLOWING not in source]
    alone = decode_alone(GraphDecoder(rigged, threads=1), sound, [20] * len(sound))
    runner = runner_of(rigged, 4)
    engine = start(rigged, runner, 4)
    asked = [(source, 20) for source in sound]
    # Every third one overflows: each slot is had by one of them, again and again.
    for place in range(0, 2 * len(sound), 3):
        asked.insert(place, (with_word(sound[place % len(sound)]), 20))
    try:
        for _ in range(3):
            found = run(engine, asked)
            broken = [text for text in found if OVERFLOWING in text.source]
            assert {(text.finish, str(text.error)) for text in broken} == {
                (Finish.FAILED, "the model's log-probability is nan")
            }
            well = [text for text in found if OVERFLOWING not in text.source]
            assert [tuple(text.tokens) for text in well] == [output.tokens for output in alone]
            assert [text.log_prob for text in well] == [sum(output.log_probs) for output in alone]
    finally:
        engine.stop()
    for cache in (runner._cross, runner._past):
        assert all(np.isfinite(array).all() for array in cache.arrays.values()), "nothing is left for later"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_lies_in_slots_that_nobody_has_touches_nobody(bundle: Bundle, value: float) -> None:
    asked = sources(3, longest=20, seed=8)
    alone = decode_alone(GraphDecoder(bundle, threads=1), asked, [1] * 3)
    runner = runner_of(bundle, 8)
    runner.insert(asked, 0)
    fill_free_slots(runner, 3, value)
    start_id = bundle.manifest.decoding.start_id
    steps = runner.step([RowInput(start_id, 0)] * 3)
    assert [(step.token, step.log_prob) for step in steps] == [(out.tokens[0], out.log_probs[0]) for out in alone]
    # A slot that was cleared is as good as new, however much had been in it.
    runner.clear_row(3)
    runner.insert(asked[:1], 3)
    again = runner.step([RowInput(start_id, 0)] * 4)
    assert (again[3].token, again[3].log_prob) == (alone[0].tokens[0], alone[0].log_probs[0])
