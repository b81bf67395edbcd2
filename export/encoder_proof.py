"""Proof of an export without a decoder: the checks of `export.proof`, made on the encoder's states.

names and axes → shapes → states at sizes never traced → states of texts equal the reference's → alone equals batched →
loss of a reduced precision against float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.bundle.graph_decoder import GraphEncoder, VerificationError, states_alone
from dragoman.bundle.manifest import Bundle, GoldenText
from dragoman.bundle.precision import LOSSES, TOLERANCES, Loss
from dragoman.bundle.verify import Check, Progress, check_golden_states, compare_states
from dragoman.export.proof import REFERENCE_ROWS, SIZES, Proof, check_names_and_axes, largest_difference
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.greedy import pad


@dataclass(frozen=True)
class StateSample:
    """The texts of an encoder's proof, with the mean of the reference's states over each."""

    texts: tuple[str, ...]
    languages: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    means: tuple[NDArray[np.float32], ...]

    def golden(self, rows: Sequence[int]) -> tuple[GoldenText, ...]:
        """The texts of `rows` in the form of golden.json; six digits tell two vectors apart."""
        return tuple(
            GoldenText(
                self.texts[row],
                self.sources[row],
                tokens=(),
                log_probs=(),
                margins=(),
                source_language=self.languages[row],
                mean_state=tuple(float(f"{value:.6g}") for value in self.means[row]),
            )
            for row in rows
        )


@torch.no_grad()
def encode_sample(checkpoint: Checkpoint, texts: Sequence[str]) -> StateSample:
    """The reference's states. Leaves out blank texts and those beyond the model's limit."""
    rules, tokenizer = checkpoint.config.decoding, checkpoint.tokenizer
    pairs = zip(texts, cycle(tokenizer.source_languages or ("",)), strict=False)
    encoded = [(text, language, tuple(tokenizer.encode(text, language))) for text, language in pairs]
    blank = {language: tuple(tokenizer.encode("", language)) for _, language, _ in encoded}
    kept = [each for each in encoded if len(each[2]) <= rules.max_source_tokens and each[2] != blank[each[1]]]
    sources = [ids for _, _, ids in kept]
    order = sorted(range(len(kept)), key=lambda index: len(sources[index]))
    means: dict[int, NDArray[np.float32]] = {}
    for start in range(0, len(order), REFERENCE_ROWS):
        rows = order[start : start + REFERENCE_ROWS]
        ids, lengths = pad([sources[row] for row in rows], rules.pad_id)
        for row, states in zip(rows, checkpoint.model.encode(ids, lengths), strict=True):
            means[row] = states[: len(sources[row])].mean(dim=0).numpy()
    return StateSample(
        tuple(text for text, _, _ in kept),
        tuple(language for _, language, _ in kept),
        tuple(sources),
        tuple(means[row] for row in range(len(kept))),
    )


def prove_states(
    reference: Checkpoint,
    bundle: Bundle,
    sample: StateSample,
    *,
    float32: StateSample | None = None,
    accept_loss: bool = False,
    threads: int,
    progress: Progress,
) -> Proof:
    """Compare the bundle's encoder with `reference`, as `export.proof.prove` does for a bundle with a decoder."""
    precision = bundle.manifest.precision
    tolerance = TOLERANCES[precision]
    figures: dict[str, Any] = {}
    progress("names and axes")
    checks = [check_names_and_axes(bundle)]

    progress("shapes and states")
    encoder = GraphEncoder(bundle, threads)
    shapes, values, figures["largest_difference"] = check_states(reference, encoder, tolerance.value)
    checks += [shapes, values]

    progress("states of texts")
    alone = states_alone(encoder, sample.sources)
    texts = check_golden_states(alone, sample.golden(range(len(alone))), tolerance)
    checks.append(Check("states of texts", texts.detail))

    progress("alone equals batched")
    batched = compare_states(encoder, sample.sources, alone)
    checks.append(batched)
    figures["alone_equals_batched"] = {"texts": len(alone), "equal": len(alone), "detail": batched.detail}

    if float32 is not None:
        progress("loss of precision")
        means = [states.mean(axis=0) for states in alone]
        loss, figures["loss_of_precision"] = check_cosines(means, float32.means, LOSSES[precision], accept_loss)
        checks.append(loss)
    return Proof(tuple(checks), figures)


def check_states(checkpoint: Checkpoint, encoder: GraphEncoder, tolerance: float) -> tuple[Check, Check, float]:
    """Compare states at several sizes, with rows of different lengths. Also returns the largest difference."""
    size, rules = checkpoint.config.architecture, checkpoint.config.decoding
    worst = 0.0
    for batch, width, _ in SIZES:
        rng = np.random.default_rng(batch)
        longest = min(width, size.max_positions)
        rows = [rng.integers(0, size.source_vocabulary, max(1, longest - row)).tolist() for row in range(batch)]
        found = encoder.states(rows)
        with torch.no_grad():
            right = checkpoint.model.encode(*pad(rows, rules.pad_id)).numpy()
        for row, states in enumerate(found):
            difference = largest_difference(states, right[row, : len(states)])
            if not difference <= tolerance:
                raise VerificationError(
                    f"states: differ by {difference:.1e} at batch {batch}, source {width}, more than {tolerance:.0e}"
                )
            worst = max(worst, difference)
    sizes = ", ".join(f"{batch}×{width}" for batch, width, _ in SIZES)
    return (
        Check("shapes", f"batch × source of {sizes}"),
        Check("states", f"within {worst:.1e} of PyTorch's at the same sizes"),
        worst,
    )


def check_cosines(
    found: Sequence[NDArray[np.float32]], float32: Sequence[NDArray[np.float32]], bounds: Loss, accept: bool
) -> tuple[Check, dict[str, Any]]:
    """How near the mean states of a reduced precision are to float32's.

    Raises VerificationError beyond `bounds`, unless `accept` is true.
    """
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, float32, strict=True)]
    cosines = [float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) for a, b in pairs]
    mean, least = float(np.mean(cosines)), min(cosines)
    detail = f"mean states of {len(cosines)} texts: cosine {mean:.5f} with float32's, {least:.5f} at least"
    if not accept and not mean >= bounds.cosine:
        raise VerificationError(f"loss of precision: {detail}; the bound is {bounds.cosine}; --force accepts any loss")
    return Check("loss of precision", detail), {"texts": len(cosines), "mean_cosine": mean, "least_cosine": least}
