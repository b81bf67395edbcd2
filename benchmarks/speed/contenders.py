"""Contenders: the serving engine and the peers, with the same weights.

Each peer is imported only on use; a peer that is not installed is skipped, by name on stderr.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import click

from benchmarks.bundle_engine import in_order_of_length
from benchmarks.measured_models import write_bundle
from dragoman.bundle.manifest import Bundle
from dragoman.bundle.precision import Precision
from dragoman.bundle.rules import DecodingRules
from dragoman.model.transformer import Transformer
from dragoman.service.engine.offline import Offline
from dragoman.service.engine.ort_runner import OrtRunner

PRECISIONS: tuple[Precision, ...] = ("float32", "int8")

ROWS = 32
"""The largest batch of every contender."""

OURS = "dragoman"

Key = tuple[str, Precision]
"""Contender: name and precision."""


class Contender(Protocol):
    """Greedy decoder under test."""

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """Exactly `steps` tokens for each source, in one batch, the end token suppressed."""

    def outputs(self, sources: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """Each source's output up to its end token, or `max_tokens` tokens; sorted by length, 32 at a time."""


@dataclass(frozen=True)
class Comparison:
    """Pair of contenders to compare."""

    precision: Precision
    peer: str
    peer_precision: Precision

    @property
    def ours(self) -> Key:
        """Our contender."""
        return OURS, self.precision

    @property
    def theirs(self) -> Key:
        """The peer's contender."""
        return self.peer, self.peer_precision


COMPARISONS = (
    Comparison("float32", "ctranslate2", "float32"),
    Comparison("float32", "transformers", "float32"),
    Comparison("float32", "optimum", "float32"),
    Comparison("int8", "ctranslate2", "int8"),
    # transformers has no int8 on the CPU, so its users compare int8 with float32.
    Comparison("int8", "transformers", "float32"),
)

Opener = Callable[[int], Contender]
"""Factory of a contender, by its number of threads."""


class Dragoman:
    """Serving engine, run offline. See `Contender`.

    The bundle's rules decide whether the end token is suppressed.
    """

    def __init__(self, bundle: Bundle, threads: int, provider: str = "cpu", rows: int = ROWS) -> None:
        self._runner = OrtRunner(bundle, provider=provider, threads=threads, max_rows=rows)
        self._rows = rows
        self._rules = bundle.manifest.decoding

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """See `Contender`."""
        with self._engine() as engine:
            return [sequence.tokens for sequence in engine.run(sources, [steps] * len(sources))]

    def outputs(self, sources: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See `Contender`."""
        with self._engine() as engine:
            return in_order_of_length(engine, sources, [max_tokens] * len(sources))

    def _engine(self) -> Offline:
        """New engine for each run, so that no thread outlives it; the creation is cheap."""
        return Offline([self._runner], self._rules, self._rows, scored=False)


def prepare_ours(folder: Path, model: Transformer, rules: DecodingRules) -> dict[Key, Opener]:
    """Export the model in each precision into `folder`."""
    return {
        (OURS, precision): partial(Dragoman, write_bundle(folder / precision, model, rules, precision))
        for precision in PRECISIONS
    }


def prepare_peers(names: Sequence[str], folder: Path, model: Transformer, rules: DecodingRules) -> dict[Key, Opener]:
    """Write the model in each peer's format; a peer that is not installed is skipped, by name on stderr."""
    found: dict[Key, Opener] = {}
    for name in names:
        try:
            found.update(_PREPARE[name](folder / name, model, rules))
        except ModuleNotFoundError as error:
            click.echo(f"{name} is left out: {error}", err=True)
    return found


def comparisons_of(peers: Mapping[Key, Opener]) -> Iterator[Comparison]:
    """Comparisons whose peer is available."""
    return (comparison for comparison in COMPARISONS if comparison.theirs in peers)


def _prepare_ctranslate2(folder: Path, model: Transformer, rules: DecodingRules) -> dict[Key, Opener]:
    from benchmarks.speed.ctranslate import CTranslate2, convert

    convert(model, rules, folder)
    return {("ctranslate2", each): partial(CTranslate2, folder, rules, each) for each in PRECISIONS}


def _prepare_transformers(_folder: Path, model: Transformer, rules: DecodingRules) -> dict[Key, Opener]:
    from benchmarks.speed.hugging_face import open_transformers, rebuild

    theirs = rebuild(model, rules)
    return {("transformers", "float32"): partial(open_transformers, theirs, rules)}


def _prepare_optimum(folder: Path, model: Transformer, rules: DecodingRules) -> dict[Key, Opener]:
    from benchmarks.speed.hugging_face import export_optimum, open_optimum, rebuild

    export_optimum(rebuild(model, rules), folder)
    return {("optimum", "float32"): partial(open_optimum, folder, rules)}


_PREPARE: Mapping[str, Callable[[Path, Transformer, DecodingRules], dict[Key, Opener]]] = {
    "ctranslate2": _prepare_ctranslate2,
    "transformers": _prepare_transformers,
    "optimum": _prepare_optimum,
}
