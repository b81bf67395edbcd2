"""A text's output depends neither on texts decoded beside it nor on earlier texts in its slot."""

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
"""A word whose states and logits are not finite."""

LONG = "The small old dog sings under the quick blue river near the red house and falls over a stone."


@pytest.mark.parametrize("longest", [1, 60], ids=["the long text ends first", "the long text ends last"])
def test_each_text_has_the_same_output_in_any_order(bundle: Bundle, checkpoint: Checkpoint, longest: int) -> None:
    texts = ("7.", "EUR 18.10", "kite", "?", LONG)
    requests = [(tuple(checkpoint.tokenizer.encode(text)), longest if text == LONG else 12) for text in texts]
    decoder = GraphDecoder(bundle, threads=1)
    alone = decode_alone(decoder, [source for source, _ in requests], [limit for _, limit in requests])
    engine = start(bundle, runner_of(bundle, 4), 4)
    try:
        for order in itertools.permutations(range(len(texts))):
            found = run(engine, [requests[index] for index in order])
            for index, text in zip(order, found, strict=True):
                assert tuple(text.tokens) == alone[index].tokens
                assert text.log_prob == sum(alone[index].log_probs)
    finally:
        engine.stop()


def test_the_shortest_texts_beside_the_longest(bundle: Bundle) -> None:
    longest = bundle.manifest.decoding.max_source_tokens
    texts = [(2,), (5, 2), (*range(10, 9 + longest), 2), (2,)]
    alone = decode_alone(GraphDecoder(bundle, threads=1), texts, [30] * 4)
    engine = start(bundle, runner_of(bundle, 4), 4)
    try:
        found = run(engine, [(source, 30) for source in texts])
    finally:
        engine.stop()
    assert [tuple(text.tokens) for text in found] == [output.tokens for output in alone]
    assert [text.log_prob for text in found] == [sum(output.log_probs) for output in alone]
    assert np.isfinite([text.log_prob for text in found]).all()


@pytest.fixture(scope="module")
def rigged(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Write the graphs of a model that one source word makes overflow. An export would fail its proof."""
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


def test_an_overflowing_text_fails_and_leaves_its_slot_clean(rigged: Bundle) -> None:
    sound = [source for source in sources(24, longest=20, seed=3) if OVERFLOWING not in source]
    alone = decode_alone(GraphDecoder(rigged, threads=1), sound, [20] * len(sound))
    runner = runner_of(rigged, 4)
    engine = start(rigged, runner, 4)
    requests = [(source, 20) for source in sound]
    # Every third text overflows, so that each slot holds one again and again.
    for index in range(0, 2 * len(sound), 3):
        requests.insert(index, (with_word(sound[index % len(sound)]), 20))
    try:
        for _ in range(3):
            found = run(engine, requests)
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
        assert all(np.isfinite(array).all() for array in cache.arrays.values()), "no cell may spoil a later text"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_contents_of_free_slots_change_no_output(bundle: Bundle, value: float) -> None:
    texts = sources(3, longest=20, seed=8)
    alone = decode_alone(GraphDecoder(bundle, threads=1), texts, [1] * 3)
    runner = runner_of(bundle, 8)
    runner.insert(texts, 0)
    fill_free_slots(runner, 3, value)
    start_id = bundle.manifest.decoding.start_id
    steps = runner.step([RowInput(start_id, 0)] * 3)
    assert [(step.token, step.log_prob) for step in steps] == [(out.tokens[0], out.log_probs[0]) for out in alone]
    # A cleared slot is as good as new.
    runner.clear_row(3)
    runner.insert(texts[:1], 3)
    again = runner.step([RowInput(start_id, 0)] * 4)
    assert (again[3].token, again[3].log_prob) == (alone[0].tokens[0], alone[0].log_probs[0])
