"""From a checkpoint's folder to a proven bundle."""

import json
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dragoman.export.bundle import (
    FORMAT_VERSION,
    GOLDEN_FILE,
    REPORT_FILE,
    TOKENIZER_FOLDER,
    Bundle,
    GoldenText,
    Manifest,
    list_files,
    open_bundle,
    version_of,
    write_manifest,
)
from dragoman.export.onnx_files import dimensions_of, write_graphs
from dragoman.export.proof import MARGIN, Proof, Sample, prove, translate_sample
from dragoman.export.verify import Progress, VerificationError, verify_bundle
from dragoman.model.checkpoint import TOKENIZER_FOLDER as CHECKPOINT_TOKENIZER
from dragoman.model.checkpoint import Checkpoint, load_checkpoint, own_weights
from dragoman.model.processor import processor_flags
from dragoman.model.tokenizer import SentencePieceTokenizer

GOLDEN_TEXTS = 64
"""The fewest texts of a golden.json, unless the sample holds fewer."""

CHARACTERS_PER_TOKEN = 16
"""A text of more characters than this for each token that the model can read is refused before it is tokenized."""


def export_checkpoint(
    checkpoint_folder: Path,
    bundle_folder: Path,
    *,
    texts: Sequence[str] | None = None,
    force: bool = False,
    threads: int,
    progress: Progress,
) -> tuple[Bundle, Proof]:
    """Export, prove, and only then put the bundle in place.

    `texts` are what it is proven on; made up from the vocabulary where not given. Raises FileExistsError where
    `bundle_folder` exists and `force` is not set, ValueError for a checkpoint that cannot be read, VerificationError
    where a check fails; no bundle is left behind then, and one that was there before is untouched.
    """
    if bundle_folder.exists() and not force:
        raise FileExistsError(f"{bundle_folder}: exists already; --force replaces it")
    progress("checkpoint")
    checkpoint = load_checkpoint(checkpoint_folder)
    aside = bundle_folder.with_name(bundle_folder.name + ".partial")
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, aside, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        proof = _fill(aside, checkpoint_folder, checkpoint, texts, cleanup, threads, progress)
        if bundle_folder.exists():
            shutil.rmtree(bundle_folder)
        aside.rename(bundle_folder)
    return Bundle(bundle_folder, open_bundle(bundle_folder).manifest), proof


def _fill(
    folder: Path,
    checkpoint_folder: Path,
    checkpoint: Checkpoint,
    texts: Sequence[str] | None,
    cleanup: ExitStack,
    threads: int,
    progress: Progress,
) -> Proof:
    progress("graphs")
    write_graphs(folder, checkpoint.model, checkpoint.config.decoding)
    shutil.copytree(checkpoint_folder / CHECKPOINT_TOKENIZER, folder / TOKENIZER_FOLDER)

    progress("reference answers")
    sample = translate_sample(checkpoint, texts or made_up_texts(checkpoint.tokenizer))
    bundle = Bundle(folder, _manifest(folder, checkpoint))
    scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
    proof = prove(checkpoint, bundle, sample, scratch, threads=threads, progress=progress)

    golden = pick_golden(sample)
    (folder / GOLDEN_FILE).write_bytes(TypeAdapter(tuple[GoldenText, ...]).dump_json(golden, indent=1) + b"\n")
    report = _report(checkpoint, folder, proof)
    (folder / REPORT_FILE).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    write_manifest(folder, _manifest(folder, checkpoint))

    progress("replay")
    verify_bundle(open_bundle(folder), threads=threads)
    return proof


def _manifest(folder: Path, checkpoint: Checkpoint) -> Manifest:
    config = checkpoint.config
    files = list_files(folder)
    return Manifest(
        format_version=FORMAT_VERSION,
        name=config.name,
        version=version_of(files),
        family=config.family,
        source_languages=config.source_languages,
        target_languages=config.target_languages,
        precision="float32",
        dimensions=dimensions_of(config.architecture),
        decoding=config.decoding,
        max_source_characters=CHARACTERS_PER_TOKEN * config.decoding.max_source_tokens,
        files=files,
    )


def _report(checkpoint: Checkpoint, folder: Path, proof: Proof) -> dict[str, Any]:
    float32_bytes = sum(4 * tensor.numel() for tensor in own_weights(checkpoint.model).values())
    bundle_bytes = sum(entry.size for entry in list_files(folder))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "precision": "float32",
        "checks": [{"name": check.name, "detail": check.detail} for check in proof.checks],
        **proof.figures,
        "size": {
            "float32_weights_bytes": float32_bytes,
            "bundle_bytes": bundle_bytes,
            "ratio": round(bundle_bytes / float32_bytes, 4),
        },
        "versions": {name: version(name) for name in ("torch", "onnx", "onnxscript", "numpy", "sentencepiece")}
        | {"python": platform.python_version(), "onnxruntime": _runtime_version()},
        "processor": {"machine": platform.machine(), "flags": sorted(processor_flags())},
    }


def _runtime_version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def pick_golden(sample: Sample) -> tuple[GoldenText, ...]:
    """Texts of all lengths whose every step was decided clearly, so that they come out the same on any machine."""
    clear = [row for row, output in enumerate(sample.outputs) if min(output.margins) >= 10 * MARGIN]
    if not clear:
        raise VerificationError("golden answers: the model decides no text clearly, so nothing could be replayed")
    clear.sort(key=lambda row: len(sample.sources[row]))
    stride = max(1, len(clear) // GOLDEN_TEXTS)
    return tuple(
        GoldenText(
            sample.texts[row],
            sample.sources[row],
            sample.outputs[row].tokens,
            sample.outputs[row].log_probs,
            sample.outputs[row].margins,
        )
        for row in clear[::stride]
    )


def made_up_texts(tokenizer: SentencePieceTokenizer, count: int = 256) -> list[str]:
    """Texts of 1 to 24 random pieces: they mean nothing, and reach all of the vocabulary of any language."""
    rng = random.Random(0)
    controls = set(tokenizer.control_ids)
    pieces = [piece for piece in range(tokenizer.vocabulary) if piece not in controls]
    return [tokenizer.decode(rng.choices(pieces, k=1 + index % 24)) for index in range(count)]


def allowed_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0))
