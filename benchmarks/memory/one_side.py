"""One side of the memory table, in a process of its own.

    python -m benchmarks.memory.one_side dragoman|ctranslate2 FOLDER

Decodes a batch of sources twice and prints the peak resident memory as JSON, in bytes. PyTorch is never imported,
because its memory would be counted.
"""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dragoman.service.system.resident import resident_memory_bytes
from dragoman.service.system.tuning import limit_malloc_arenas

ROWS = 32
SOURCE_TOKENS = 25
STEPS = 32
SAMPLE_SECONDS = 0.002

SOURCES = [[3 + (7 * row + place) % 1000 for place in range(SOURCE_TOKENS)] for row in range(ROWS)]


def peak_resident_bytes(run: Callable[[], object]) -> int:
    """Peak resident memory during `run`, sampled every SAMPLE_SECONDS."""
    peak, over = resident_memory_bytes(), threading.Event()

    def sample() -> None:
        nonlocal peak
        while not over.wait(SAMPLE_SECONDS):
            peak = max(peak, resident_memory_bytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        run()
    finally:
        over.set()
        sampler.join()
    return peak


def dragoman(folder: Path) -> Callable[[], object]:
    """Serving engine; the bundle's rules suppress the end token."""
    from pydantic import TypeAdapter

    from dragoman.bundle.manifest import MANIFEST_FILE, Bundle, Manifest
    from dragoman.service.engine.offline import Offline
    from dragoman.service.engine.ort_runner import OrtRunner

    # The measured bundle is incomplete, and `open_bundle` would refuse it.
    bundle = Bundle(folder, TypeAdapter(Manifest).validate_json((folder / MANIFEST_FILE).read_bytes()))
    runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=ROWS)
    runner.rest()
    engine = Offline([runner], bundle.manifest.decoding, ROWS, scored=False)

    def run() -> None:
        engine.run(SOURCES, [STEPS] * ROWS)

    return run


def ctranslate2(folder: Path) -> Callable[[], object]:
    """CTranslate2, forced to STEPS tokens per source."""
    import ctranslate2 as peer

    translator = peer.Translator(str(folder), device="cpu", compute_type="int8", inter_threads=1, intra_threads=1)
    texts = [[str(token) for token in source] for source in SOURCES]

    def run() -> None:
        translator.translate_batch(
            texts, beam_size=1, max_batch_size=ROWS, min_decoding_length=STEPS, max_decoding_length=STEPS
        )

    return run


SIDES = {"dragoman": dragoman, "ctranslate2": ctranslate2}


def main(side: str, folder: Path) -> None:
    """Run one side and print its memory."""
    limit_malloc_arenas()
    before = resident_memory_bytes()
    run = SIDES[side](folder)

    def twice() -> None:
        run()
        run()

    print(json.dumps({"resident_bytes": peak_resident_bytes(twice), "before_bytes": before}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
