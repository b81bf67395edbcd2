"""Verification without torch: replays a bundle's golden answers on the machine at hand, alone and in batches."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle.graph_decoder import (
    Decoded,
    GraphDecoder,
    GraphEncoder,
    Ids,
    VerificationError,
    decode_alone,
    open_session,
    states_alone,
)
from dragoman.bundle.manifest import GOLDEN_FILE, PRODUCT_FILE, TOKENIZER_FOLDER, Bundle, GoldenText
from dragoman.bundle.precision import TOLERANCES, Tolerance
from dragoman.bundle.providers import Provider
from dragoman.bundle.tokenizers import Tokenizer, open_tokenizer

__all__ = ["Check", "VerificationError", "verify_bundle"]
"""All that a server needs of verification."""

Progress = Callable[[str], None]

BATCHES = (2, 3, 8, 32)
"""Batch sizes in which answers are compared with answers alone."""

SAME_STATE = 1e-5
"""The largest difference between a text's state in a batch and alone."""

PRODUCT_TERMS = 64
"""Number of products that the known answer sums."""


@dataclass(frozen=True)
class Check:
    """A check that passed."""

    name: str
    detail: str
    """What was compared, and the result, in words."""


def verify_bundle(
    bundle: Bundle, *, threads: int, provider: Provider = "cpu", progress: Progress | None = None
) -> tuple[Check, ...]:
    """Replay golden.json with the bundle's own tokenizer ids, alone and in batches.

    `threads` is the number of threads to compute on; `progress` is called with each check's name before it runs.
    Raises VerificationError with the name of the first failed check and the text's index. On CUDA, whose kernels
    differ by batch, texts with another answer in a batch are counted instead of failing.
    """
    report = progress or (lambda _name: None)
    golden = bundle.golden()
    report("tokenizer")
    tokenizer = open_tokenizer(bundle.path(TOKENIZER_FOLDER))
    checks = [check_tokenizer(tokenizer, golden)]

    if bundle.manifest.precision == "int8":
        report("known product")
        checks.append(check_product(bundle))

    report("golden answers")
    sources = [text.source_ids for text in golden]
    tolerance, strict = TOLERANCES[bundle.manifest.precision], provider == "cpu"
    if not bundle.manifest.translates:
        encoder = GraphEncoder(bundle, threads, provider=provider)
        states = states_alone(encoder, sources)
        checks.append(check_golden_states(states, golden, tolerance))
        report("alone equals batched")
        return (*checks, compare_states(encoder, sources, states, strict=strict))

    decoder = GraphDecoder(bundle, threads, provider=provider)
    limits = [len(text.tokens) for text in golden]
    prompts = [tokenizer.prompt(text.target_language) for text in golden]
    alone = decode_alone(decoder, sources, limits, prompts)
    checks.append(check_golden(alone, golden, tolerance))

    report("alone equals batched")
    checks.append(compare_batches(decoder, sources, limits, alone, prompts, strict=strict))
    return tuple(checks)


def check_tokenizer(tokenizer: Tokenizer, golden: Sequence[GoldenText]) -> Check:
    """The tokenizer gives the ids that it gave at export."""
    for index, text in enumerate(golden):
        if tuple(tokenizer.encode(text.text, text.source_language, text.target_language)) != text.source_ids:
            raise VerificationError(f"tokenizer: text {index} of {GOLDEN_FILE} gives other ids than at export")
    return Check("tokenizer", f"{len(golden)} texts give the ids they gave at export")


def check_product(bundle: Bundle) -> Check:
    """This processor sums products of 8-bit numbers exactly; not every one does.

    Without VNNI, x86 adds pairs of products in 16 bits, which the largest products overflow.
    """
    session = open_session(bundle.path(PRODUCT_FILE), threads=1)
    (found,) = session.run(None, {"x": np.full((1, PRODUCT_TERMS), 255, np.uint8)})
    right = (255 - 128) * 127 * PRODUCT_TERMS
    if set(found.flatten().tolist()) != {right}:
        raise VerificationError(
            f"known product: this processor gives {found.min()} instead of {right}: its 8-bit products saturate; "
            "serve the float32 bundle here"
        )
    return Check("known product", f"8-bit products are summed exactly ({right})")


def compare_batches(
    decoder: GraphDecoder,
    sources: Sequence[Ids],
    limits: Sequence[int],
    alone: Sequence[Decoded],
    prompts: Sequence[Ids] | None = None,
    *,
    strict: bool = True,
) -> Check:
    """Decode the sources among random batch-mates, in several batch sizes, and compare each with `alone`.

    Raises VerificationError if a row's tokens differ; unless `strict`, such rows are counted instead.
    """
    compared = equal = same = 0
    for size in BATCHES:
        for rows in shuffled_batches(len(sources), size):
            outputs = decoder.decode(
                [sources[row] for row in rows],
                [limits[row] for row in rows],
                prompts and [prompts[row] for row in rows],
            )
            for row, output in zip(rows, outputs, strict=True):
                if strict and output.tokens != alone[row].tokens:
                    raise VerificationError(
                        f"alone equals batched: text {row} gives other tokens in a batch of {len(rows)} than alone, "
                        f"from token {first_difference(output.tokens, alone[row].tokens)} on"
                    )
                compared += 1
                equal += output.tokens == alone[row].tokens
                same += output.log_probs == alone[row].log_probs
    sizes = ", ".join(map(str, BATCHES))
    alike = "all tokens equal" if equal == compared else f"{equal} with equal tokens"
    detail = f"{compared} rows in batches of {sizes}: {alike}, {same} with bit-equal log-probabilities"
    return Check("alone equals batched", detail)


def compare_states(
    encoder: GraphEncoder, sources: Sequence[Ids], alone: Sequence[NDArray[np.float32]], *, strict: bool = True
) -> Check:
    """`compare_batches` for states."""
    compared = same = 0
    worst = 0.0
    for size in BATCHES:
        for rows in shuffled_batches(len(sources), size):
            for row, found in zip(rows, encoder.states([sources[row] for row in rows]), strict=True):
                difference = float(np.abs(found - alone[row]).max())
                if strict and not difference <= SAME_STATE:
                    raise VerificationError(
                        f"alone equals batched: a state of text {row} differs by {difference:.1e} "
                        f"in a batch of {len(rows)}"
                    )
                compared += 1
                same += difference == 0.0
                worst = max(worst, difference)
    sizes = ", ".join(map(str, BATCHES))
    detail = f"{compared} rows in batches of {sizes}: states within {worst:.1e}, those of {same} bit-equal"
    return Check("alone equals batched", detail)


def check_golden_states(
    found: Sequence[NDArray[np.float32]], golden: Sequence[GoldenText], tolerance: Tolerance
) -> Check:
    """The mean of each text's states equals the reference's, within `tolerance`."""
    worst = 0.0
    for index, (states, right) in enumerate(zip(found, golden, strict=True)):
        difference = float(np.abs(states.mean(axis=0) - right.mean_state).max())
        if not difference <= tolerance.value:
            raise VerificationError(
                f"golden answers: the mean state of text {index} differs by {difference:.1e}, "
                f"the bound is {tolerance.value:.0e}"
            )
        worst = max(worst, difference)
    return Check("golden answers", f"{len(golden)} texts, mean states within {worst:.1e}")


def shuffled_batches(count: int, size: int) -> Iterator[list[int]]:
    """The numbers below `count` in batches of `size`, shuffled with a fixed seed."""
    order = list(range(count))
    random.Random(size).shuffle(order)
    for start in range(0, count, size):
        yield order[start : start + size]


def check_golden(found: Sequence[Decoded], golden: Sequence[GoldenText], tolerance: Tolerance) -> Check:
    """Each text gives the reference's tokens, up to its first step that rounding on another machine could change."""
    steps = 0
    differences = [0.0]
    for index, (output, right) in enumerate(zip(found, golden, strict=True)):
        sure = sure_steps(right.margins, tolerance.replay_margin, len(right.tokens))
        if output.tokens[:sure] != right.tokens[:sure]:
            place = first_difference(output.tokens, right.tokens)
            raise VerificationError(
                f"golden answers: text {index} gives other tokens than the reference, from token {place} on"
            )
        pairs = zip(output.log_probs[:sure], right.log_probs[:sure], strict=False)
        differences += [abs(ours - theirs) for ours, theirs in pairs]
        steps += sure
    worst = float(np.max(differences))
    if not worst <= tolerance.log_prob:
        bound = tolerance.log_prob
        raise VerificationError(f"golden answers: a log-probability differs by {worst:.1e}, the bound is {bound:.0e}")
    detail = f"{len(golden)} texts, {steps} tokens equal, log-probability within {worst:.1e}"
    return Check("golden answers", detail)


def sure_steps(margins: Sequence[float], least: float, steps: int) -> int:
    """How many of `steps` precede the first whose two best logits are closer than `least`: noise may decide that."""
    return next((step for step, margin in enumerate(margins) if margin < least), steps)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    """The first index at which two outputs differ; the shorter one's length if it is a prefix of the longer."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
