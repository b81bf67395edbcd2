"""Export of a checkpoint's folder to a proven bundle."""

import json
import platform
import random
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dragoman.bundle.cpus import processor_flags
from dragoman.bundle.manifest import (
    FORMAT_VERSION,
    GOLDEN_FILE,
    MANIFEST_FILE,
    REPORT_FILE,
    TOKENIZER_FOLDER,
    Bundle,
    GoldenText,
    Manifest,
    list_files,
    open_bundle,
    write_manifest,
)
from dragoman.bundle.precision import TOLERANCES, Precision
from dragoman.bundle.runtime import onnxruntime
from dragoman.bundle.tokenizers import Tokenizer
from dragoman.bundle.verify import Progress, verify_bundle
from dragoman.export.encoder_proof import encode_sample, prove_states
from dragoman.export.float16 import halve
from dragoman.export.graph_writer import dimensions_of, write_graphs, write_product
from dragoman.export.int8 import quantize
from dragoman.export.proof import Proof, Sample, clear_cut, prove, translate_sample
from dragoman.model.checkpoint import Checkpoint, own_weights
from dragoman.model.config import CheckpointConfig
from dragoman.model.folders import replacing
from dragoman.model.importing import family_of, load_any
from dragoman.model.transformer import Transformer

REDUCED: dict[Precision, Callable[[Transformer], Transformer]] = {"int8": quantize, "float16": halve}
"""The conversion from float32 to each reduced precision."""

LARGE_BYTES = 1_000_000_000
"""A model is large if its float32 weights have at least this size."""

MIN_GOLDEN_TEXTS = 64
"""The fewest texts of a golden.json, unless the sample holds fewer."""

CHARACTERS_PER_TOKEN = 16
"""The longest text, in characters for each token of the longest source; a longer one is refused before tokenizing."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export."""

    precision: Precision = "float32"
    texts: Sequence[str] = ()
    """Texts for the proof; random texts from the vocabulary if empty."""
    force: bool = False
    """Replace an existing bundle, and accept any loss of a reduced precision."""
    threads: int = 1
    family: str | None = None
    """The checkpoint's family, one of `dragoman.model.importing.FAMILY_NAMES`; recognised by its files if None."""
    ignored_rules: Collection[str] = ()
    """Decoding rules of the checkpoint to leave out."""


def export_checkpoint(
    checkpoint_folder: Path, bundle_folder: Path, options: ExportOptions, progress: Progress
) -> tuple[Bundle, Proof]:
    """Export and prove a checkpoint, and only then put the bundle in place.

    Raises FileExistsError if `bundle_folder` exists without `force`, or is not a bundle; ValueError or
    FileNotFoundError for a checkpoint that cannot be read; VerificationError for a failed check. After an error no new
    bundle is left behind, and an existing one is untouched.
    """
    _check_target(bundle_folder, options.force)
    family = options.family or family_of(checkpoint_folder)
    progress(f"checkpoint ({family})")
    with replacing(bundle_folder) as new_folder:
        checkpoint = load_any(checkpoint_folder, family, new_folder / TOKENIZER_FOLDER, options.ignored_rules)
        proof = _fill(new_folder, checkpoint, options, progress)
    return open_bundle(bundle_folder), proof


def _check_target(folder: Path, force: bool) -> None:
    if not folder.exists():
        return
    if not force:
        raise FileExistsError(f"{folder}: already exists; --force replaces it")
    if any(folder.iterdir()) and not (folder / MANIFEST_FILE).is_file():
        raise FileExistsError(f"{folder}: not a bundle, so --force does not replace it")


def _fill(folder: Path, checkpoint: Checkpoint, options: ExportOptions, progress: Progress) -> Proof:
    """Write and prove everything in a bundle but its tokenizer."""
    float32_bytes = sum(4 * tensor.numel() for tensor in own_weights(checkpoint.model).values())
    reference = checkpoint
    if options.precision in REDUCED:
        reference = replace(checkpoint, model=REDUCED[options.precision](checkpoint.model))
    if options.precision == "int8":
        write_product(folder)
    progress("graphs")
    write_graphs(folder, reference.model, reference.config.decoding, precision=options.precision)

    progress("reference answers")
    texts = options.texts or random_texts(checkpoint.tokenizer, large=float32_bytes >= LARGE_BYTES)
    bundle = Bundle(folder, manifest_of(checkpoint.config, options.precision, folder))
    prove_kind = _prove_decoder if bundle.manifest.translates else _prove_encoder
    proof, golden = prove_kind(checkpoint, reference, bundle, texts, options, progress)
    (folder / GOLDEN_FILE).write_bytes(TypeAdapter(tuple[GoldenText, ...]).dump_json(golden, indent=1) + b"\n")
    report = _report(float32_bytes, options.precision, folder, proof)
    (folder / REPORT_FILE).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    write_manifest(folder, manifest_of(checkpoint.config, options.precision, folder))

    progress("replay")
    verify_bundle(open_bundle(folder), threads=options.threads)
    return proof


def _prove_decoder(
    checkpoint: Checkpoint,
    reference: Checkpoint,
    bundle: Bundle,
    texts: Sequence[str],
    options: ExportOptions,
    progress: Progress,
) -> tuple[Proof, tuple[GoldenText, ...]]:
    """The proof of a bundle that translates, and its golden texts."""
    sample = translate_sample(reference, texts)
    if not options.texts and TOLERANCES[options.precision].whole:
        sample = clear_cut(sample, TOLERANCES[options.precision].margin, MIN_GOLDEN_TEXTS)
    with tempfile.TemporaryDirectory(dir=bundle.folder) as scratch:  # /tmp may be in memory
        proof = prove(
            reference,
            bundle,
            sample,
            Path(scratch),
            float32=None if reference is checkpoint else translate_sample(checkpoint, texts),
            accept_loss=options.force,
            threads=options.threads,
            progress=progress,
        )
    return proof, pick_golden(sample, TOLERANCES[options.precision].replay_margin)


def _prove_encoder(
    checkpoint: Checkpoint,
    reference: Checkpoint,
    bundle: Bundle,
    texts: Sequence[str],
    options: ExportOptions,
    progress: Progress,
) -> tuple[Proof, tuple[GoldenText, ...]]:
    """The proof of a bundle that only embeds, and its golden texts."""
    sample = encode_sample(reference, texts)
    proof = prove_states(
        reference,
        bundle,
        sample,
        float32=None if reference is checkpoint else encode_sample(checkpoint, texts),
        accept_loss=options.force,
        threads=options.threads,
        progress=progress,
    )
    return proof, sample.golden(spread(range(len(sample.sources)), sample.sources))


def manifest_of(config: CheckpointConfig, precision: Precision, folder: Path) -> Manifest:
    """The manifest of a checkpoint's bundle in `folder`, with the files there; `write_manifest` adds the version."""
    return Manifest(
        format_version=FORMAT_VERSION,
        name=config.name,
        version="",
        family=config.family,
        source_languages=config.source_languages,
        target_languages=config.target_languages,
        precision=precision,
        dimensions=dimensions_of(config.architecture),
        decoding=config.decoding,
        embedding=config.embedding,
        max_source_characters=CHARACTERS_PER_TOKEN * config.decoding.max_source_tokens,
        files=list_files(folder),
    )


def _report(float32_bytes: int, precision: Precision, folder: Path, proof: Proof) -> dict[str, Any]:
    bundle_bytes = sum(entry.size for entry in list_files(folder))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "precision": precision,
        "checks": [{"name": check.name, "detail": check.detail} for check in proof.checks],
        **proof.figures,
        "size": {
            "float32_weights_bytes": float32_bytes,
            "bundle_bytes": bundle_bytes,
            "ratio": round(bundle_bytes / float32_bytes, 4),
        },
        "versions": {name: version(name) for name in ("torch", "onnx", "onnxscript", "numpy", "sentencepiece")}
        | {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__},
        "processor": {"machine": platform.machine(), "flags": sorted(processor_flags())},
    }


def pick_golden(sample: Sample, margin: float) -> tuple[GoldenText, ...]:
    """Texts of all lengths; if there are enough, only those that were decided by `margin` at every step."""
    rows = list(range(len(sample.outputs)))
    clear = [row for row in rows if min(sample.outputs[row].margins, default=margin) >= margin]
    chosen = clear if len(clear) >= MIN_GOLDEN_TEXTS else rows
    return tuple(
        GoldenText(
            sample.texts[row],
            sample.sources[row],
            sample.outputs[row].tokens,
            sample.outputs[row].log_probs,
            sample.outputs[row].margins,
            *sample.languages[row],
        )
        for row in spread(chosen, sample.sources)
    )


def spread(rows: Sequence[int], sources: Sequence[Sequence[int]]) -> list[int]:
    """At least MIN_GOLDEN_TEXTS of `rows`, or all if there are fewer, spread over the lengths of their sources."""
    ordered = sorted(rows, key=lambda row: len(sources[row]))
    return ordered[:: max(1, len(ordered) // MIN_GOLDEN_TEXTS)]


def random_texts(tokenizer: Tokenizer, *, large: bool = False) -> list[str]:
    """Texts of random pieces: meaningless, but they cover the whole vocabulary of any language.

    256 texts of 1 to 24 pieces; for a `large` model, whose proof is slow, 96 of 1 to 8.
    """
    count, longest = (96, 8) if large else (256, 24)
    rng = random.Random(0)
    controls = set(tokenizer.control_ids)
    pieces = [piece for piece in range(tokenizer.vocabulary) if piece not in controls]
    return [tokenizer.decode(rng.choices(pieces, k=1 + index % longest)) for index in range(count)]
