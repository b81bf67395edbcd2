"""Offline use of the serving engine in the benchmarks."""

from collections.abc import Sequence as Row
from pathlib import Path

from dragoman.bundle.manifest import TOKENIZER_FOLDER, Bundle, open_bundle
from dragoman.bundle.tokenizers import cut, open_tokenizer
from dragoman.service.engine.offline import Offline
from dragoman.service.engine.ort_runner import OrtRunner


def open_engine(bundle: Bundle, *, threads: int, rows: int) -> Offline:
    """An engine on the CPU."""
    runner = OrtRunner(bundle, provider="cpu", threads=threads, max_rows=rows)
    return Offline([runner], bundle.manifest.decoding, rows)


class Translator:
    """Offline translator of a bundle."""

    def __init__(self, bundle_folder: Path, *, threads: int, rows: int = 32) -> None:
        bundle = open_bundle(bundle_folder)
        self._longest = bundle.manifest.decoding.max_source_tokens
        self._tokenizer = open_tokenizer(bundle.path(TOKENIZER_FOLDER))
        self._engine = open_engine(bundle, threads=threads, rows=rows)

    def translate(self, texts: Row[str]) -> list[str]:
        """Translations in the order of `texts`; texts beyond the model's limit are truncated."""
        sources = [cut(self._tokenizer.encode(text), self._longest) for text in texts]
        outputs = in_order_of_length(self._engine, sources)
        return [self._tokenizer.decode(tokens) for tokens in outputs]

    def close(self) -> None:
        """End the engine's thread."""
        self._engine.close()


def in_order_of_length(engine: Offline, sources: Row[Row[int]], limits: Row[int] | None = None) -> list[list[int]]:
    """Outputs in the order of `sources`, which run sorted by length to reduce padding."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    most = None if limits is None else [limits[index] for index in order]
    found = engine.run([sources[index] for index in order], most)
    outputs: list[list[int]] = [[] for _ in sources]
    for index, sequence in zip(order, found, strict=True):
        outputs[index] = sequence.tokens
    return outputs
