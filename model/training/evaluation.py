"""Translation quality: greedy output against references, by domain."""

from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu

from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import Tokenizer, cut
from dragoman.model.greedy import greedy
from dragoman.model.training.corpus import Pair
from dragoman.model.transformer import Transformer

ROWS = 64


@dataclass(frozen=True)
class Score:
    """Corpus scores of one domain, each from 0 to 100."""

    domain: str
    pairs: int
    bleu: float
    """sacreBLEU with its default 13a tokenizer."""
    chrf: float
    """chrF2."""


def translate_all(model: Transformer, tokenizer: Tokenizer, rules: DecodingRules, texts: Sequence[str]) -> list[str]:
    """Greedy translations in the order of `texts`, decoded in batches of similar length."""
    sources = [tokenizer.encode(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: len(sources[i]))
    translations = [""] * len(texts)
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        outputs = greedy(model, rules, [cut(sources[i], rules.max_source_tokens) for i in rows])
        for i, output in zip(rows, outputs, strict=True):
            translations[i] = tokenizer.decode(output.tokens)
    return translations


def evaluate(model: Transformer, tokenizer: Tokenizer, rules: DecodingRules, pairs: Sequence[Pair]) -> list[Score]:
    """Score the model on `pairs`, with one row per domain, sorted by name."""
    return score(pairs, translate_all(model, tokenizer, rules, [pair.source for pair in pairs]))


def score(pairs: Sequence[Pair], translations: Sequence[str]) -> list[Score]:
    """Score translations against the pairs' targets, with one row per domain, sorted by name."""
    scores = []
    for domain in sorted({pair.domain for pair in pairs}):
        rows = [i for i, pair in enumerate(pairs) if pair.domain == domain]
        hypotheses, references = [translations[i] for i in rows], [[pairs[i].target for i in rows]]
        bleu = sacrebleu.corpus_bleu(hypotheses, references).score
        chrf = sacrebleu.corpus_chrf(hypotheses, references).score
        scores.append(Score(domain, len(rows), bleu, chrf))
    return scores
