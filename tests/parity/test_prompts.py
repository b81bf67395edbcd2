"""Prompts of several tokens, and forced end tokens: reference, verifier and engine agree."""

import dataclasses

import pytest
import torch

from dragoman.bundle.graph_decoder import GraphDecoder, decode_alone
from dragoman.bundle.manifest import Bundle
from dragoman.bundle.rules import DecodingRules
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import Output, greedy
from dragoman.service.engine.offline import Offline
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.sequence import Finish
from tests.support.tiny import sentences

LIMIT = 9


@pytest.fixture(scope="module")
def rules(checkpoint: Checkpoint) -> DecodingRules:
    return dataclasses.replace(
        checkpoint.config.decoding, prompt_tokens=3, forced_end_id=2, max_output_tokens=LIMIT, output_margin=LIMIT
    )


@pytest.fixture(scope="module")
def prompted(bundle: Bundle, rules: DecodingRules) -> Bundle:
    return Bundle(bundle.folder, dataclasses.replace(bundle.manifest, decoding=rules))


@pytest.fixture(scope="module")
def sources(checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    return [tuple(checkpoint.tokenizer.encode(text)) for text in sentences(60, seed=8)]


@pytest.fixture(scope="module")
def prompts(sources: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [(1, 270 + index % 4, 280 + index % 3) for index in range(len(sources))]


@pytest.fixture(scope="module")
def right(
    checkpoint: Checkpoint, rules: DecodingRules, sources: list[tuple[int, ...]], prompts: list[tuple[int, ...]]
) -> list[Output]:
    return greedy(checkpoint.model, rules, sources, prompts=prompts)


def test_the_reference_output_excludes_the_prompt(
    checkpoint: Checkpoint, rules: DecodingRules, sources: list[tuple[int, ...]], prompts: list[tuple[int, ...]]
) -> None:
    source, prompt = sources[0], prompts[0]
    (output,) = greedy(checkpoint.model, rules, [source], prompts=[prompt])
    with torch.no_grad():
        states = checkpoint.model.encode(torch.tensor([source]), torch.tensor([len(source)]))
        fed = torch.tensor([[*prompt, *output.tokens[:-1]]])
        hidden = checkpoint.model.decode(fed, states, torch.tensor([len(source)]))[0, len(prompt) - 1 :]
        logits = checkpoint.model.projection(hidden)
    logits[:, list(rules.suppressed_ids)] = -torch.inf
    chosen = len(output.log_probs)
    assert tuple(logits.argmax(dim=1).tolist()[:chosen]) == output.tokens[:chosen]
    (plain,) = greedy(checkpoint.model, rules, [source])
    assert plain.tokens != output.tokens, "the prompt changes the answer"


def test_only_an_output_at_its_limit_ends_with_the_forced_token(
    checkpoint: Checkpoint,
    rules: DecodingRules,
    sources: list[tuple[int, ...]],
    prompts: list[tuple[int, ...]],
    right: list[Output],
) -> None:
    free = greedy(checkpoint.model, dataclasses.replace(rules, forced_end_id=None), sources, prompts=prompts)
    assert {output.finish for output in free} == {"end", "length"}
    for output, without in zip(right, free, strict=True):
        if without.finish == "end":
            assert output == without
        else:
            assert output.tokens == (*without.tokens[:-1], 2)
            assert output.log_probs == without.log_probs[:-1]
            assert (len(output.margins), output.finish) == (LIMIT - 1, "length")


def test_prompts_of_wrong_number_or_length_are_refused(checkpoint: Checkpoint, rules: DecodingRules) -> None:
    for prompts in ([(1, 5)], [(1, 5), (1,)], [(), ()]):
        with pytest.raises(ValueError, match="prompts must be 2 of one length, at least 1, are"):
            greedy(checkpoint.model, rules, [[5, 2], [6, 2]], prompts=prompts)
    with pytest.raises(ValueError, match="limits must be 1 numbers from 1 to 62, are"):
        greedy(checkpoint.model, rules, [[5, 2]], [63], prompts=[(1, 5, 6)])


def test_the_verifier_gives_the_answers_of_the_reference(
    prompted: Bundle, sources: list[tuple[int, ...]], prompts: list[tuple[int, ...]], right: list[Output]
) -> None:
    decoder = GraphDecoder(prompted, threads=1)
    limits = [LIMIT] * len(sources)
    alone = decode_alone(decoder, sources, limits, prompts)
    assert decoder.decode(sources, limits, prompts) == alone
    clear = [row for row, output in enumerate(right) if min(output.margins) > 1e-3]
    assert len(clear) > 40
    assert [alone[row].tokens for row in clear] == [right[row].tokens for row in clear]
    forced = list(decoder.force(sources, [output.tokens for output in right], prompts))
    for row in clear:
        chosen = tuple(int(step["next_token"][row, 0]) for step in forced[: len(right[row].margins)])
        assert chosen == right[row].tokens[: len(chosen)]


@pytest.mark.parametrize("rows", [1, 7])
def test_a_batch_of_different_prompts_equals_the_verifier(
    prompted: Bundle, sources: list[tuple[int, ...]], prompts: list[tuple[int, ...]], rows: int
) -> None:
    alone = decode_alone(GraphDecoder(prompted, threads=1), sources, [LIMIT] * len(sources), prompts)
    runner = OrtRunner(prompted, provider="cpu", threads=1, max_rows=rows)
    with Offline([runner], prompted.manifest.decoding, rows) as engine:
        found = engine.run(sources, prompts=prompts)
    assert [tuple(sequence.tokens) for sequence in found] == [output.tokens for output in alone]
    assert [sequence.log_prob for sequence in found] == [sum(output.log_probs) for output in alone]
    assert [sequence.chosen for sequence in found] == [len(output.log_probs) for output in alone]
    assert {sequence.finish for sequence in found} == {Finish.END, Finish.LENGTH}


def test_prompt_and_longest_output_together_fill_the_cache(
    prompted: Bundle, checkpoint: Checkpoint, sources: list[tuple[int, ...]]
) -> None:
    most = checkpoint.config.architecture.max_positions - 2
    rules = dataclasses.replace(prompted.manifest.decoding, max_output_tokens=most, output_factor=most, end_ids=(339,))
    bundle = Bundle(prompted.folder, dataclasses.replace(prompted.manifest, decoding=rules))
    runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=2)
    with Offline([runner], rules, 2) as engine:
        found = engine.run(sources[:2], prompts=[(1, 270, 280)] * 2)
    assert [len(sequence.tokens) for sequence in found] == [most, most]
