"""One side of the memory table, in a process of its own: `... memory_side dragoman|ctranslate2 FOLDER`.

Decodes a batch of sources twice, prints as JSON the most memory that was resident meanwhile, in bytes, and ends.
PyTorch is never imported: it would be counted.
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


def most_resident(run: Callable[[], object]) -> int:
    """The most memory that is resident while `run` goes on, by many samples."""
    most, over = resident_memory_bytes(), threading.Event()

    def sample() -> None:
        nonlocal most
        while not over.wait(SAMPLE_SECONDS):
            most = max(most, resident_memory_bytes())

    watching = threading.Thread(target=sample)
    watching.start()
    try:
        run()
    finally:
        over.set()
        watching.join()
    return most


def dragoman(folder: Path) -> Callable[[], object]:
    """Our engine, as it serves; the bundle's rules suppress the end token."""
    from pydantic import TypeAdapter

    from dragoman.bundle.manifest import MANIFEST_FILE, Bundle, Manifest
    from dragoman.service.engine.offline import Offline
    from dragoman.service.engine.ort_runner import OrtRunner

    # What is measured is no whole bundle, which `open_bundle` would refuse.
    bundle = Bundle(folder, TypeAdapter(Manifest).validate_json((folder / MANIFEST_FILE).read_bytes()))
    runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=ROWS)
    runner.rest()
    engine = Offline([runner], bundle.manifest.decoding, ROWS, scored=False)

    def run() -> None:
        engine.run(SOURCES, [STEPS] * ROWS)

    return run


def ctranslate2(folder: Path) -> Callable[[], object]:
    """The peer."""
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
    """Run the side, and print its figure."""
    limit_malloc_arenas()
    before = resident_memory_bytes()
    run = SIDES[side](folder)

    def twice() -> None:
        run()
        run()

    print(json.dumps({"resident_bytes": most_resident(twice), "before_bytes": before}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
