"""Proof without torch: replays a bundle's golden answers on the machine at hand, alone and in batches.

`GraphDecoder` is as plain as decoding over the two graphs can be, and shares nothing with the serving engine, so
that each can be held against the other.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle.graphs import (
    DECODER_FILE,
    ENCODER_FILE,
    GraphSpec,
    bind_axes,
    decoder_spec,
    encoder_spec,
    padded_width,
    updated,
)
from dragoman.bundle.manifest import GOLDEN_FILE, PRODUCT_FILE, TOKENIZER_FOLDER, Bundle, GoldenText
from dragoman.bundle.precision import TOLERANCES, Tolerance
from dragoman.bundle.runtime import onnxruntime
from dragoman.bundle.tokenizers import open_tokenizer

Progress = Callable[[str], None]
Provider = Literal["cpu", "cuda"]

PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

BATCHES = (2, 3, 8, 32)
"""Rows that run together when answers of batches are held against answers alone."""

SAME_STATE = 1e-5
"""By how much a state may differ beside others from the same text's alone."""

PRODUCT_TERMS = 64
"""How many products the known answer sums."""

ERRORS_ONLY = 3
"""ONNX Runtime's log level. Below it, a step whose caches are not bound in place warns at each call."""


class VerificationError(Exception):
    """A check that failed; the message begins with its name."""


@dataclass(frozen=True)
class Check:
    """A check that passed."""

    name: str
    detail: str
    """What was compared, and how it came out, in words."""


@dataclass(frozen=True)
class Decoded:
    """One source's output."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each token that was chosen: of all but one that was forced at the limit."""


Ids = Sequence[int]
Arrays = dict[str, NDArray[Any]]


class GraphEncoder:
    """A bundle's encoder. Checks the shape of whatever it gives."""

    def __init__(self, bundle: Bundle, threads: int, *, provider: Provider = "cpu") -> None:
        """Open the graph. Raises VerificationError where `provider` cannot be had."""
        self._encoder = _open(bundle.path(ENCODER_FILE), threads, provider)
        self._rules = bundle.manifest.decoding
        self._encoder_spec = encoder_spec(bundle.manifest.dimensions, bundle.manifest.precision)

    def encode(self, sources: Sequence[Sequence[int]]) -> Arrays:
        """The encoder's outputs by name, for sources padded to one width."""
        ids, lengths = pad(sources, self._rules.pad_id)
        sizes = {"batch": ids.shape[0], "source": ids.shape[1]}
        return _run(self._encoder, self._encoder_spec, {"input_ids": ids, "source_lengths": lengths}, sizes)

    def states(self, sources: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """The states of each source's own tokens, [tokens, model]."""
        hidden = self.encode(sources)["hidden"]
        return [rows[: len(source)] for rows, source in zip(hidden, sources, strict=True)]


class GraphDecoder(GraphEncoder):
    """Greedy decoding over a bundle's graphs. Checks the shape of whatever they give."""

    def __init__(self, bundle: Bundle, threads: int, *, logits: bool = False, provider: Provider = "cpu") -> None:
        """Open both graphs. See `GraphEncoder`."""
        super().__init__(bundle, threads, provider=provider)
        self._decoder = _open(bundle.path(DECODER_FILE), threads, provider)
        self._decoder_spec = decoder_spec(bundle.manifest.dimensions, bundle.manifest.precision, logits)

    def decode(
        self, sources: Sequence[Ids], limits: Sequence[int], prompts: Sequence[Ids] | None = None
    ) -> list[Decoded]:
        """Translate `sources` in one batch; output `i` holds at most `limits[i]` tokens.

        `prompts`, all of one length, are what the decoder is fed before its first choice; the start token alone where
        not given.
        """
        rules = self._rules
        tokens: list[list[int]] = [[] for _ in sources]
        log_probs: list[list[float]] = [[] for _ in sources]
        unfinished = set(range(len(sources)))
        *given, fed = self._columns(prompts or [(rules.start_id,)] * len(sources))
        step = self.begin(sources, len(given) + max(limits))
        for column in given:
            step(column)
        while unfinished:
            found = step(fed)
            fed = found["next_token"][:, 0].tolist()
            for row in sorted(unfinished):
                ended, full = fed[row] in rules.end_ids, len(tokens[row]) + 1 == limits[row]
                if full and not ended and rules.forced_end_id is not None:
                    tokens[row].append(rules.forced_end_id)
                else:
                    tokens[row].append(fed[row])
                    log_probs[row].append(float(found["log_prob"][row]))
                if ended or full:
                    unfinished.remove(row)
        return [Decoded(tuple(t), tuple(p)) for t, p in zip(tokens, log_probs, strict=True)]

    def force(
        self, sources: Sequence[Ids], targets: Sequence[Ids], prompts: Sequence[Ids] | None = None
    ) -> Iterator[Arrays]:
        """What each step finds where a row's output so far is that of `targets`, whatever was chosen before.

        One entry a step, from the first after the prompt up to the longest target's last token. `prompts` are as in
        `decode`. Each is made when it is asked for, since logits of all steps may be more than memory holds.
        """
        begun = prompts or [(self._rules.start_id,)] * len(sources)
        before = len(begun[0]) - 1
        columns = self._columns([[*prompt, *target[:-1]] for prompt, target in zip(begun, targets, strict=True)])
        step = self.begin(sources, len(columns))
        return islice(map(step, columns), before, None)

    def _columns(self, rows: Sequence[Ids]) -> list[list[int]]:
        """The ids of each step, for rows that are fed one after another; a row that is shorter goes on with padding."""
        return [list(column) for column in zip_longest(*rows, fillvalue=self._rules.pad_id)]

    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> Callable[[Sequence[int]], Arrays]:
        """Encode, and give a function that feeds one token a row to the next step, at most `capacity` times."""
        cross = self.encode(sources)
        del cross["hidden"]
        lengths = np.array([len(source) for source in sources])
        width = padded_width(int(lengths.max()))
        sizes = {"batch": len(sources), "source": width, "capacity": padded_width(capacity)}
        caches = {
            spec.name: np.zeros(bind_axes(spec, sizes), spec.dtype)
            for spec in self._decoder_spec.inputs
            if "capacity" in spec.axes
        }
        position = 0

        def step(tokens: Sequence[int]) -> Arrays:
            nonlocal caches, position
            feeds = {
                "token": np.array(tokens)[:, None],
                "position": np.full(len(sources), position),
                "source_lengths": lengths,
                "scored": np.array(True),
            }
            found = _run(self._decoder, self._decoder_spec, feeds | cross | caches, sizes)
            caches = {name: found.pop(updated(name)) for name in caches}
            position += 1
            return found

        return step


def _open(path: Path, threads: int, provider: Provider) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = ERRORS_ONLY
    # A proof has time; threads that spin between products would only take it from whoever else is at work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    wanted, available = PROVIDERS[provider], onnxruntime.get_available_providers()
    if wanted not in available:
        raise VerificationError(f"provider: {provider} is not in this ONNX Runtime, which has {', '.join(available)}")
    session = onnxruntime.InferenceSession(path, options, providers=[wanted])
    used = session.get_providers()[0]
    if used != wanted:
        raise VerificationError(f"provider: {provider} could not be started; ONNX Runtime fell back to {used}")
    return session


def _run(session: onnxruntime.InferenceSession, graph: GraphSpec, feeds: Arrays, sizes: Mapping[str, int]) -> Arrays:
    names = [spec.name for spec in graph.outputs]
    found = dict(zip(names, session.run(names, feeds), strict=True))
    for spec in graph.outputs:
        shape, right = found[spec.name].shape, bind_axes(spec, sizes)
        if shape != right:
            raise VerificationError(f"shapes: {spec.name} is {list(shape)}, should be {list(right)} with {dict(sizes)}")
    return found


def verify_bundle(
    bundle: Bundle, *, threads: int, provider: Provider = "cpu", progress: Progress | None = None
) -> tuple[Check, ...]:
    """Replay golden.json with the bundle's own tokenizer ids, alone and in batches.

    `threads` is the number of cores to compute on; `progress` is told each check's name before it runs.
    Raises VerificationError that names the first check that failed, with the text's index. On CUDA, whose kernels
    differ by batch, texts that come out otherwise in a batch are counted and no failure.
    """
    tell = progress or (lambda _name: None)
    golden = bundle.golden()
    sources = [text.source_ids for text in golden]
    tell("tokenizer")
    tokenizer = open_tokenizer(bundle.path(TOKENIZER_FOLDER))
    for index, text in enumerate(golden):
        if tuple(tokenizer.encode(text.text, text.source_language, text.target_language)) != text.source_ids:
            raise VerificationError(f"tokenizer: text {index} of {GOLDEN_FILE} gives other ids than at export")
    checks = [Check("tokenizer", f"{len(golden)} texts give the ids they gave at export")]

    if bundle.manifest.precision == "int8":
        tell("known product")
        checks.append(check_product(bundle))

    tell("golden answers")
    if not bundle.manifest.translates:
        encoder = GraphEncoder(bundle, threads, provider=provider)
        states = states_alone(encoder, sources)
        checks.append(check_golden_states(states, golden, TOLERANCES[bundle.manifest.precision]))
        tell("alone equals batched")
        return (*checks, compare_states(encoder, sources, states, strict=provider == "cpu"))

    decoder = GraphDecoder(bundle, threads, provider=provider)
    limits = [len(text.tokens) for text in golden]
    prompts = [tokenizer.prompt(text.target_language) for text in golden]
    alone = decode_alone(decoder, sources, limits, prompts)
    checks.append(check_golden(alone, golden, TOLERANCES[bundle.manifest.precision]))

    tell("alone equals batched")
    checks.append(compare_batches(decoder, sources, limits, alone, prompts, strict=provider == "cpu"))
    return tuple(checks)


def check_product(bundle: Bundle) -> Check:
    """Products of 8-bit numbers are summed exactly, as they are not on every processor.

    Without VNNI, x86 adds pairs of products in 16 bits, which the largest ones overflow.
    """
    session = onnxruntime.InferenceSession(bundle.path(PRODUCT_FILE), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, PRODUCT_TERMS), 255, np.uint8)})
    right = (255 - 128) * 127 * PRODUCT_TERMS
    if set(found.flatten().tolist()) != {right}:
        raise VerificationError(
            f"known product: this processor gives {found.min()} for {right}: its 8-bit products saturate; "
            "serve the float32 bundle here"
        )
    return Check("known product", f"8-bit products are summed exactly ({right})")


def decode_alone(
    decoder: GraphDecoder, sources: Sequence[Ids], limits: Sequence[int], prompts: Sequence[Ids] | None = None
) -> list[Decoded]:
    """Each source by itself."""
    return [
        decoder.decode([source], [limits[row]], prompts and [prompts[row]])[0] for row, source in enumerate(sources)
    ]


def compare_batches(
    decoder: GraphDecoder,
    sources: Sequence[Ids],
    limits: Sequence[int],
    alone: Sequence[Decoded],
    prompts: Sequence[Ids] | None = None,
    *,
    strict: bool = True,
) -> Check:
    """Decode the sources among random batch-mates, in several batch sizes, and hold each against itself alone.

    Raises VerificationError where a row's tokens differ; where not `strict`, such rows are counted instead.
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
                        f"alone equals batched: text {row} gives other tokens in a batch of {len(rows)}, "
                        f"from token {first_difference(output.tokens, alone[row].tokens)} on"
                    )
                compared += 1
                equal += output.tokens == alone[row].tokens
                same += output.log_probs == alone[row].log_probs
    sizes = ", ".join(map(str, BATCHES))
    alike = "all tokens equal" if equal == compared else f"{equal} with equal tokens"
    detail = f"{compared} rows in batches of {sizes}: {alike}, {same} with bit-equal log-probabilities"
    return Check("alone equals batched", detail)


def states_alone(encoder: GraphEncoder, sources: Sequence[Ids]) -> list[NDArray[np.float32]]:
    """The states of each source encoded by itself."""
    return [encoder.states([source])[0] for source in sources]


def compare_states(
    encoder: GraphEncoder, sources: Sequence[Ids], alone: Sequence[NDArray[np.float32]], *, strict: bool = True
) -> Check:
    """As `compare_batches`, for states: those of a text beside others against those of the text alone."""
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
    """The mean of each text's states is the reference's."""
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
    """The numbers below `count` in batches of `size`, in an order that is random and always the same."""
    order = list(range(count))
    random.Random(size).shuffle(order)
    for start in range(0, count, size):
        yield order[start : start + size]


def check_golden(found: Sequence[Decoded], golden: Sequence[GoldenText], tolerance: Tolerance) -> Check:
    """Each text gives the reference's tokens, up to its first step that other arithmetic could decide otherwise."""
    steps = 0
    differences = [0.0]
    for index, (output, right) in enumerate(zip(found, golden, strict=True)):
        sure = sure_steps(right.margins, tolerance.replay_margin, len(right.tokens))
        if output.tokens[:sure] != right.tokens[:sure]:
            at = first_difference(output.tokens, right.tokens)
            raise VerificationError(f"golden answers: text {index} gives other tokens than the reference, from {at} on")
        pairs = zip(output.log_probs[:sure], right.log_probs[:sure], strict=False)
        differences += [abs(found_one - right_one) for found_one, right_one in pairs]
        steps += sure
    worst = float(np.max(differences))
    if not worst <= tolerance.log_prob:
        bound = tolerance.log_prob
        raise VerificationError(f"golden answers: a log-probability differs by {worst:.1e}, the bound is {bound:.0e}")
    detail = f"{len(golden)} texts, {steps} tokens equal, log-probability within {worst:.1e}"
    return Check("golden answers", detail)


def sure_steps(margins: Sequence[float], least: float, steps: int) -> int:
    """How many of `steps` come before the first whose two best logits lie closer than `least`: noise may decide it."""
    return next((step for step, margin in enumerate(margins) if margin < least), steps)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    """The first index at which two outputs differ; the shorter's length where it begins the longer."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def pad(sources: Sequence[Sequence[int]], pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources -> ids [batch, width], padded on the right, and their lengths [batch]."""
    lengths = np.array([len(source) for source in sources], np.int64)
    ids = np.full((len(sources), padded_width(int(lengths.max()))), pad_id, np.int64)
    for row, source in enumerate(sources):
        ids[row, : len(source)] = source
    return ids, lengths
