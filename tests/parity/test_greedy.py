"""The reference decoder against one pass of the whole model, and against itself in other batches."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from dragoman.bundle.rules import DecodingRules
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import Output, greedy, pad
from tests.support.tiny import PAPER, TINY, clear_cut, random_model, sentences, tiny_checkpoint, tiny_rules


@pytest.fixture(scope="module", params=[TINY, PAPER], ids=["pre", "post"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_checkpoint(tmp_path_factory.mktemp("greedy") / "tiny", architecture=request.param)


@pytest.fixture(scope="module")
def answers(checkpoint: Checkpoint) -> dict[str, Output]:
    """Texts with clear margins, and their answers alone."""
    return clear_cut(checkpoint, sentences(24, seed=5))


def decode(checkpoint: Checkpoint, rules: DecodingRules, text: str, limit: int | None = None) -> Output:
    limits = None if limit is None else [limit]
    (output,) = greedy(checkpoint.model, rules, [checkpoint.tokenizer.encode(text)], limits)
    return output


def long_answer(answers: dict[str, Output]) -> tuple[str, Output]:
    """The text whose answer has the most different tokens."""
    return max(answers.items(), key=lambda item: len(set(item[1].tokens)))


def test_tiny_answers_are_varied(answers: dict[str, Output]) -> None:
    assert len(answers) >= 12
    assert {output.finish for output in answers.values()} == {"end", "length"}
    assert len({output.tokens for output in answers.values()}) >= len(answers) / 2
    assert len(set(long_answer(answers)[1].tokens)) >= 8


def test_each_choice_is_the_best_of_one_full_pass(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    rules = checkpoint.config.decoding
    for text, output in answers.items():
        source = torch.tensor([checkpoint.tokenizer.encode(text)])
        target = torch.tensor([[rules.start_id, *output.tokens[:-1]]])
        with torch.no_grad():
            logits = checkpoint.model(source, torch.tensor([source.shape[1]]), target)[0]
        logits[:, list(rules.suppressed_ids)] = -torch.inf
        two = logits.topk(2, dim=-1)
        assert two.indices[:, 0].tolist() == list(output.tokens)
        chosen = logits.log_softmax(dim=-1)[torch.arange(len(output.tokens)), list(output.tokens)]
        torch.testing.assert_close(torch.tensor(output.log_probs), chosen, rtol=0, atol=1e-4)
        margins = two.values[:, 0] - two.values[:, 1]
        torch.testing.assert_close(torch.tensor(output.margins), margins, rtol=0, atol=1e-4)


def test_alone_equals_batched_in_any_order(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    texts = list(answers)
    for seed in range(3):
        random.Random(seed).shuffle(texts)
        outputs = greedy(checkpoint.model, checkpoint.config.decoding, list(map(checkpoint.tokenizer.encode, texts)))
        for text, output in zip(texts, outputs, strict=True):
            assert output.tokens == answers[text].tokens
            assert output.finish == answers[text].finish
            assert output.log_probs == pytest.approx(answers[text].log_probs, abs=1e-4)


def test_decoding_stops_at_the_first_end_token(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    text, plain = long_answer(answers)
    early, late = plain.tokens[2], next(token for token in plain.tokens[3:] if token not in plain.tokens[:3])
    rules = checkpoint.config.decoding
    for ends, last in (((late,), late), ((late, early), early), ((early, late), early)):
        output = decode(checkpoint, dataclasses.replace(rules, end_ids=ends), text)
        assert output.finish == "end"
        assert output.tokens == plain.tokens[: plain.tokens.index(last) + 1]
        assert len(output.log_probs) == len(output.margins) == len(output.tokens)


def test_an_output_at_its_limit_finishes_by_length(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    text, plain = long_answer(answers)
    for limit in (1, 3):
        output = decode(checkpoint, checkpoint.config.decoding, text, limit)
        assert output.tokens == plain.tokens[:limit]
        assert output.finish == "length"


def test_an_end_token_at_the_limit_finishes_by_end(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    text, plain = next((text, output) for text, output in answers.items() if output.finish == "end")
    assert decode(checkpoint, checkpoint.config.decoding, text, len(plain.tokens)) == plain


def test_each_row_of_a_batch_has_its_own_limit(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    sources = [checkpoint.tokenizer.encode(text) for text in answers]
    limits = [1 + row % 7 for row in range(len(sources))]
    outputs = greedy(checkpoint.model, checkpoint.config.decoding, sources, limits)
    for output, plain, limit in zip(outputs, answers.values(), limits, strict=True):
        assert output.tokens == plain.tokens[:limit]
        assert output.finish == ("end" if plain.finish == "end" and len(plain.tokens) <= limit else "length")


def test_default_limits_come_from_the_rules(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    rules = checkpoint.config.decoding
    for text, output in answers.items():
        most = rules.output_limit(len(checkpoint.tokenizer.encode(text)))
        assert len(output.tokens) <= most
        assert output.finish == "end" or len(output.tokens) == most


def test_suppressed_tokens_are_never_chosen(checkpoint: Checkpoint, answers: dict[str, Output]) -> None:
    text, plain = long_answer(answers)
    rules = checkpoint.config.decoding
    assert all(not set(output.tokens) & set(rules.suppressed_ids) for output in answers.values())
    suppressed = (*rules.suppressed_ids, *set(plain.tokens[:3]))
    output = decode(checkpoint, dataclasses.replace(rules, suppressed_ids=suppressed), text)
    assert not set(output.tokens) & set(suppressed)


def test_padding_can_be_chosen_unless_it_is_suppressed() -> None:
    model, rules, source = random_model(), tiny_rules(), [7, 8, 9, 2]
    with torch.no_grad():
        states = model.encode(torch.tensor([source]), torch.tensor([4]))
        hidden = model.decode(torch.tensor([[rules.start_id]]), states, torch.tensor([4]))[0, 0]
        model.projection.weight[rules.pad_id] = hidden * 100 / hidden.norm()
    (free,) = greedy(model, dataclasses.replace(rules, suppressed_ids=()), [source], [1])
    (barred,) = greedy(model, rules, [source], [1])
    assert free.tokens == (rules.pad_id,)
    assert barred.tokens != (rules.pad_id,)


def test_no_sources_give_no_outputs(checkpoint: Checkpoint) -> None:
    assert greedy(checkpoint.model, checkpoint.config.decoding, []) == []


@pytest.mark.parametrize("limits", [[0], [-1], [TINY.max_positions + 1], [3, 3], []])
def test_limits_beyond_the_model_are_refused(checkpoint: Checkpoint, limits: list[int]) -> None:
    with pytest.raises(ValueError, match=r"limits must be 1 numbers from 1 to 64, are \["):
        greedy(checkpoint.model, checkpoint.config.decoding, [[5, 2]], limits)


def test_the_whole_position_table_can_be_used(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "short", architecture=dataclasses.replace(TINY, max_positions=6))
    endless = dataclasses.replace(checkpoint.config.decoding, suppressed_ids=(0, 1, 2, 3))
    (output,) = greedy(checkpoint.model, endless, [[7, 8, 9, 10, 11, 2]])
    assert (len(output.tokens), output.finish) == (6, "length")


def test_rows_are_padded_on_the_right() -> None:
    padded, lengths = pad([[5, 6, 7], [8]], pad_id=9)
    assert padded.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert lengths.tolist() == [3, 1]
