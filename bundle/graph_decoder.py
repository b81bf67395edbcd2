"""Encoding and greedy decoding over the two graphs of a bundle, as plainly as they can be done.

Nothing is shared with the serving engine, so that each can be checked against the other. Letters in shapes: B batch,
S source, D model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

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
from dragoman.bundle.manifest import Bundle
from dragoman.bundle.providers import PROVIDERS, Provider
from dragoman.bundle.runtime import onnxruntime

ERRORS_ONLY = 3
"""ONNX Runtime's log level. Below it, a step whose caches are not bound in place warns at each call."""

Ids = Sequence[int]
Arrays = dict[str, NDArray[Any]]


class VerificationError(Exception):
    """A failed check; the message begins with its name."""


@dataclass(frozen=True)
class Decoded:
    """The output for one source."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """One for each chosen token; a token that is forced at the limit has none."""


class GraphEncoder:
    """A bundle's encoder. Checks the shape of every output."""

    def __init__(self, bundle: Bundle, threads: int, *, provider: Provider = "cpu") -> None:
        """Open the graph. Raises VerificationError if `provider` is not available."""
        self._encoder = open_session(bundle.path(ENCODER_FILE), threads, provider)
        self._rules = bundle.manifest.decoding
        self._encoder_spec = encoder_spec(bundle.manifest.dimensions, bundle.manifest.precision)

    def encode(self, sources: Sequence[Ids]) -> Arrays:
        """The encoder's outputs by name, for sources padded to one width."""
        ids, lengths = pad(sources, self._rules.pad_id)
        sizes = {"batch": ids.shape[0], "source": ids.shape[1]}
        return _run(self._encoder, self._encoder_spec, {"input_ids": ids, "source_lengths": lengths}, sizes)

    def states(self, sources: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """The states of each source, [S, D] without padding."""
        hidden = self.encode(sources)["hidden"]
        return [rows[: len(source)] for rows, source in zip(hidden, sources, strict=True)]


class GraphDecoder(GraphEncoder):
    """Greedy decoding over a bundle's graphs. Checks the shape of every output."""

    def __init__(self, bundle: Bundle, threads: int, *, logits: bool = False, provider: Provider = "cpu") -> None:
        """Open both graphs. See `GraphEncoder`."""
        super().__init__(bundle, threads, provider=provider)
        self._decoder = open_session(bundle.path(DECODER_FILE), threads, provider)
        self._decoder_spec = decoder_spec(bundle.manifest.dimensions, bundle.manifest.precision, logits)

    def decode(
        self, sources: Sequence[Ids], limits: Sequence[int], prompts: Sequence[Ids] | None = None
    ) -> list[Decoded]:
        """Translate `sources` in one batch; output `i` holds at most `limits[i]` tokens.

        `prompts`, all of one length, are fed to the decoder before its first choice. Default: the start token alone.
        """
        rules = self._rules
        tokens: list[list[int]] = [[] for _ in sources]
        log_probs: list[list[float]] = [[] for _ in sources]
        unfinished = set(range(len(sources)))
        *prompt, fed = self._columns(prompts or [(rules.start_id,)] * len(sources))
        step = self.begin(sources, len(prompt) + max(limits))
        for column in prompt:
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
        """The outputs of each step when the rows are fed `targets`, whatever the model chooses (teacher forcing).

        One entry per step, from the first after the prompt to the last token of the longest target. `prompts` are as
        in `decode`. Steps are computed lazily: the logits of all of them may exceed memory.
        """
        starts = prompts or [(self._rules.start_id,)] * len(sources)
        skipped = len(starts[0]) - 1
        columns = self._columns([[*prompt, *target[:-1]] for prompt, target in zip(starts, targets, strict=True)])
        step = self.begin(sources, len(columns))
        return islice(map(step, columns), skipped, None)

    def _columns(self, rows: Sequence[Ids]) -> list[list[int]]:
        """The ids to feed at each step; shorter rows are filled with padding."""
        return [list(column) for column in zip_longest(*rows, fillvalue=self._rules.pad_id)]

    def begin(self, sources: Sequence[Ids], capacity: int) -> Callable[[Ids], Arrays]:
        """Encode, and return a function that runs a step on one token per row, at most `capacity` times."""
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

        def step(tokens: Ids) -> Arrays:
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


def decode_alone(
    decoder: GraphDecoder, sources: Sequence[Ids], limits: Sequence[int], prompts: Sequence[Ids] | None = None
) -> list[Decoded]:
    """Each source in a batch of its own."""
    return [
        decoder.decode([source], [limits[row]], prompts and [prompts[row]])[0] for row, source in enumerate(sources)
    ]


def states_alone(encoder: GraphEncoder, sources: Sequence[Ids]) -> list[NDArray[np.float32]]:
    """The states of each source, encoded in a batch of its own."""
    return [encoder.states([source])[0] for source in sources]


def pad(sources: Sequence[Ids], pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources -> ids [B, S], padded on the right, and their lengths [B]."""
    lengths = np.array([len(source) for source in sources], np.int64)
    ids = np.full((len(sources), padded_width(int(lengths.max()))), pad_id, np.int64)
    for row, source in enumerate(sources):
        ids[row, : len(source)] = source
    return ids, lengths


def open_session(path: Path, threads: int, provider: Provider = "cpu") -> onnxruntime.InferenceSession:
    """A session on `threads` threads. Raises VerificationError if `provider` is not available."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = ERRORS_ONLY
    # A proof is not urgent; threads that spin between products would take the CPU from other processes.
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
