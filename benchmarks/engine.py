"""The serving engine without a server, for whatever measures it."""

import threading
from collections.abc import Sequence as Row
from pathlib import Path

from dragoman.export.bundle import TOKENIZER_FOLDER, open_bundle
from dragoman.model.tokenizer import SentencePieceTokenizer, cut
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.lane import Cause, Run
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.scheduler import Limits
from dragoman.service.engine.sequence import Sequence


class Silent:
    """An observer that looks away."""

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """Nothing."""

    def stepped(self, rows: int, seconds: float) -> None:
        """Nothing."""

    def failed(self, run: Run, cause: Cause) -> None:
        """Nothing."""

    def wasted(self, tokens: int) -> None:
        """Nothing."""

    def finished(self, sequence: Sequence) -> None:
        """Nothing."""


class Translator:
    """Text to text through a bundle's engine, all at once."""

    def __init__(self, bundle_folder: Path, *, threads: int, rows: int = 32) -> None:
        bundle = open_bundle(bundle_folder)
        self._rules = bundle.manifest.decoding
        self._tokenizer = SentencePieceTokenizer(bundle.path(TOKENIZER_FOLDER))
        runner = OrtRunner(bundle, provider="cpu", threads=threads, max_rows=rows)
        limits = Limits(rows=rows, tokens=10**9, encode_tokens=2048, queue_sequences=10**9, queue_tokens=10**9)
        self._engine = Engine([runner], limits, self._rules.start_id, self._rules.end_ids, Silent())
        self._engine.start()

    def translate(self, texts: Row[str]) -> list[str]:
        """Translations in the order of `texts`; one that is longer than the model's limit is cut."""
        done = threading.Semaphore(0)
        sources = [cut(self._tokenizer.encode(text), self._rules.max_source_tokens) for text in texts]
        sequences = [
            Sequence(tuple(source), self._rules.output_limit(len(source)), lambda _sequence: done.release())
            for source in sources
        ]
        # Of like lengths together, so that little is padded.
        self._engine.submit(sorted(sequences, key=lambda sequence: len(sequence.source)))
        for _ in sequences:
            done.acquire()
        return [self._tokenizer.decode(sequence.tokens) for sequence in sequences]

    def close(self) -> None:
        """End the engine's thread."""
        self._engine.stop()
