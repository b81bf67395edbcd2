from pathlib import Path

import pytest

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.training.corpus import Pair
from dragoman.model.training.evaluation import evaluate, translate_all
from tests.support.tiny import clear_cut, sentences, tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_checkpoint(tmp_path_factory.mktemp("evaluation") / "tiny")


def translate(checkpoint: Checkpoint, texts: list[str]) -> list[str]:
    return translate_all(checkpoint.model, checkpoint.tokenizer, checkpoint.config.decoding, texts)


def test_translations_are_in_the_order_of_texts(checkpoint: Checkpoint) -> None:
    answers = clear_cut(checkpoint, sentences(20, seed=8))
    texts = sorted(answers) * 5  # more than one batch
    expected = [checkpoint.tokenizer.decode(answers[text].tokens) for text in texts]
    assert translate(checkpoint, texts) == expected
    assert len(set(expected)) > 5
    assert translate(checkpoint, []) == []


def test_an_overlong_text_is_truncated(checkpoint: Checkpoint, tmp_path: Path) -> None:
    words = "the kite " * 100
    limit = checkpoint.config.decoding.max_source_tokens
    assert len(checkpoint.tokenizer.encode(words)) > limit
    shorter = checkpoint.tokenizer.decode(checkpoint.tokenizer.encode(words)[: limit - 1])
    assert translate(checkpoint, [words]) == translate(checkpoint, [shorter])


def test_each_domain_is_scored_separately(checkpoint: Checkpoint) -> None:
    texts = sentences(8, seed=8)
    translations = translate(checkpoint, texts)
    right = [Pair("right", text, translation) for text, translation in zip(texts, translations, strict=True)]
    wrong = [Pair("wrong", text, "xyzzy plugh") for text in texts[:3]]
    scores = evaluate(
        checkpoint.model, checkpoint.tokenizer, checkpoint.config.decoding, [wrong[0], *right, *wrong[1:]]
    )
    assert [(score.domain, score.pairs) for score in scores] == [("right", 8), ("wrong", 3)]
    assert scores[0].bleu == pytest.approx(100)
    assert scores[0].chrf == pytest.approx(100)
    assert scores[1].bleu < 1
    assert scores[1].chrf < 20
