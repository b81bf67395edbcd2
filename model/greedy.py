"""The reference decoder: greedy, uncached, simple. Every other decoder is checked against it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dragoman.bundle.rules import DecodingRules
from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class Output:
    """The translation of one source."""

    tokens: tuple[int, ...]
    """The ids after the prompt, including the end token if there was one."""

    log_probs: tuple[float, ...]
    """The natural log-probability of each chosen token; a token forced at the limit has none."""

    margins: tuple[float, ...]
    """The difference between the two largest logits, for each of `log_probs`; if it is tiny, noise may decide."""

    finish: Literal["end", "length"]
    """Whether an end token was chosen, or the limit was reached first."""


@torch.no_grad()
def greedy(
    model: Transformer,
    rules: DecodingRules,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
) -> list[Output]:
    """Translate a batch of sources (ids with their end tokens), recomputing the whole prefix each step.

    The model must be in eval mode. `limits` holds each source's largest number of output tokens, at least 1 and at most
    the model's positions after the prompt. Default: by the rules. `prompts`, all of one length, are fed to the decoder
    before its first choice. Default: the start token alone. Raises ValueError for invalid limits or prompts.
    """
    starts = [[rules.start_id]] * len(sources) if prompts is None else [list(prompt) for prompt in prompts]
    if len(starts) != len(sources) or len(set(map(len, starts))) > 1 or not all(starts):
        raise ValueError(f"prompts must be {len(sources)} of one length, at least 1, are {starts}")
    caps = [rules.output_limit(len(ids)) for ids in sources] if limits is None else list(limits)
    max_cap = model.config.max_positions - max(map(len, starts), default=1) + 1
    if len(caps) != len(sources) or not all(1 <= cap <= max_cap for cap in caps):
        raise ValueError(f"limits must be {len(sources)} numbers from 1 to {max_cap}, are {caps}")
    if not sources:
        return []
    source, lengths = pad(sources, rules.pad_id)
    states = model.encode(source, lengths)
    target = torch.tensor(starts)
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    ended = torch.zeros(len(sources), dtype=torch.bool)
    ends = torch.tensor(rules.end_ids)
    cap = torch.tensor(caps)
    while not bool(ended.all()):
        logits = model.projection(model.decode(target, states, lengths)[:, -1]).float()
        logits[:, list(rules.suppressed_ids)] = -torch.inf
        best = logits.topk(2, dim=-1)
        token = logits.argmax(dim=-1)
        log_prob = logits.log_softmax(dim=-1).gather(1, token[:, None])[:, 0]
        columns.append((token, log_prob, best.values[:, 0] - best.values[:, 1]))
        target = torch.cat((target, token[:, None]), dim=1)
        ended |= torch.isin(token, ends) | (cap <= len(columns))
    return [_row(columns, row, rules, caps[row]) for row in range(len(sources))]


def _row(columns: list[tuple[Tensor, Tensor, Tensor]], row: int, rules: DecodingRules, cap: int) -> Output:
    tokens = [int(token[row]) for token, _, _ in columns[:cap]]
    end = next((i for i, token in enumerate(tokens) if token in rules.end_ids), None)
    chosen = tokens[: cap if end is None else end + 1]
    forced: list[int] = []
    if end is None and rules.forced_end_id is not None:
        chosen, forced = chosen[:-1], [rules.forced_end_id]
    return Output(
        (*chosen, *forced),
        tuple(float(log_prob[row]) for _, log_prob, _ in columns[: len(chosen)]),
        tuple(float(margin[row]) for _, _, margin in columns[: len(chosen)]),
        "length" if end is None else "end",
    )


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """One or more rows of unequal length -> ids [B, longest], padded on the right, and lengths [B]."""
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.full((len(rows), int(lengths.max())), pad_id)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row)
    return padded, lengths
