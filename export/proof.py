"""Proof of an export against the PyTorch model it came from. Each check has its own error; the order is fixed.

names and axes → shapes → encoder states and logits at sizes never traced → cached equals uncached, step by step →
greedy tokens equal the reference decoder's → alone equals batched → loss of a reduced precision against float32.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from dragoman.bundle.graph_decoder import Decoded, GraphDecoder, VerificationError, decode_alone
from dragoman.bundle.graphs import (
    DECODER_FILE,
    ENCODER_FILE,
    GraphSpec,
    decoder_spec,
    encoder_spec,
    shape_faults,
)
from dragoman.bundle.manifest import WEIGHTS_FILE, Bundle
from dragoman.bundle.precision import LOSSES, TOLERANCES, Loss, Tolerance
from dragoman.bundle.tokenizers import Tokenizer
from dragoman.bundle.verify import (
    Check,
    Progress,
    compare_batches,
    first_difference,
    shuffled_batches,
    sure_steps,
)
from dragoman.export.graph_writer import free_memory, show_logits
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import CheckpointConfig
from dragoman.model.greedy import Output, greedy, pad

SIZES = ((1, 1, 1), (1, 19, 2), (3, 2, 11), (8, 5, 3), (2, 64, 40))
"""Sizes of batch, source and target at which graphs are compared with PyTorch; none of them was traced."""

REFERENCE_ROWS = 64


@dataclass(frozen=True)
class Sample:
    """The texts of a proof, and the reference decoder's answers."""

    texts: tuple[str, ...]
    languages: tuple[tuple[str, str], ...]
    """Source and target language of each text."""
    sources: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Proof:
    """All checks of an export, with the figures for report.json."""

    checks: tuple[Check, ...]
    figures: dict[str, Any]


def translate_sample(checkpoint: Checkpoint, texts: Sequence[str]) -> Sample:
    """The reference decoder's answers; the texts take turns among the model's languages.

    Leaves out blank texts and those beyond the model's limit.
    """
    rules, tokenizer = checkpoint.config.decoding, checkpoint.tokenizer
    kept: list[tuple[str, tuple[str, str], tuple[int, ...]]] = []
    for index, text in enumerate(texts):
        pair = _languages(tokenizer, index)
        ids = tokenizer.encode(text, *pair)
        if len(ids) <= rules.max_source_tokens and ids != tokenizer.encode("", *pair):
            kept.append((text, pair, tuple(ids)))
    sources = tuple(ids for _, _, ids in kept)
    prompts = tuple(tokenizer.prompt(target) for _, (_, target), _ in kept)
    order = sorted(range(len(kept)), key=lambda index: len(sources[index]))
    outputs: dict[int, Output] = {}
    for start in range(0, len(order), REFERENCE_ROWS):
        rows = order[start : start + REFERENCE_ROWS]
        answers = greedy(
            checkpoint.model, rules, [sources[row] for row in rows], prompts=[prompts[row] for row in rows]
        )
        outputs.update(zip(rows, answers, strict=True))
    return Sample(
        tuple(text for text, _, _ in kept),
        tuple(pair for _, pair, _ in kept),
        sources,
        prompts,
        tuple(outputs[index] for index in range(len(kept))),
    )


def clear_cut(sample: Sample, margin: float, least: int) -> Sample:
    """The texts that the reference decided by `margin` at every step; all texts if that leaves fewer than `least`.

    Meant for random texts: a step that noise may decide proves nothing, and any other text serves as well.
    """
    rows = [row for row, output in enumerate(sample.outputs) if min(output.margins, default=margin) >= margin]
    if len(rows) < least:
        return sample
    return Sample(
        tuple(sample.texts[row] for row in rows),
        tuple(sample.languages[row] for row in rows),
        tuple(sample.sources[row] for row in rows),
        tuple(sample.prompts[row] for row in rows),
        tuple(sample.outputs[row] for row in rows),
    )


def _languages(tokenizer: Tokenizer, index: int) -> tuple[str, str]:
    """Source and target language of text `index`, in rotation."""
    sources, targets = tokenizer.source_languages or ("",), tokenizer.target_languages or ("",)
    return sources[index % len(sources)], targets[(index + 1) % len(targets)]


def prove(
    reference: Checkpoint,
    bundle: Bundle,
    sample: Sample,
    scratch: Path,
    *,
    float32: Sample | None = None,
    accept_loss: bool = False,
    threads: int,
    progress: Progress,
) -> Proof:
    """Compare the bundle's graphs with `reference`, whose model is in the bundle's precision and produced `sample`.

    `float32` holds the answers of float32 to the same texts if the precision is reduced; `accept_loss` accepts any
    difference from them. `scratch` is an empty folder for a copy of the graphs that outputs logits. Raises
    VerificationError with the first failed check and the difference found.

    A large model is never in memory twice: `reference` loses its weights before the graphs are opened, and one decoder
    is closed before the next is opened.
    """
    tolerance = TOLERANCES[bundle.manifest.precision]
    figures: dict[str, Any] = {}

    progress("names and axes")
    checks = [check_names_and_axes(bundle)]

    progress("shapes, states and logits")
    values = [reference_values(reference, *size) for size in SIZES]
    free_memory(reference.model.parameters())
    with_logits = _with_logits(bundle, scratch)
    passed, figures["largest_difference"] = check_values(
        GraphDecoder(with_logits, threads, logits=True), values, reference.config, tolerance.value
    )
    checks += passed

    decoder = GraphDecoder(bundle, threads)
    limits = [reference.config.decoding.output_limit(len(source)) for source in sample.sources]
    progress("cached equals uncached")
    cached, figures["cached_equals_uncached"] = check_cached(decoder, sample, tolerance)
    checks.append(cached)

    progress("greedy tokens")
    alone = decode_alone(decoder, sample.sources, limits, sample.prompts)
    tokens, figures["greedy_tokens"] = check_tokens(alone, sample, tolerance)
    checks.append(tokens)

    progress("alone equals batched")
    batched = compare_batches(decoder, sample.sources, limits, alone, sample.prompts)
    checks.append(batched)
    figures["alone_equals_batched"] = {"texts": len(alone), "equal": len(alone), "detail": batched.detail}

    if float32 is not None:
        progress("loss of precision")
        del decoder
        bounds = LOSSES[bundle.manifest.precision]
        loss, figures["loss_of_precision"] = check_loss(
            GraphDecoder(with_logits, threads, logits=True), float32, bounds, accept_loss
        )
        checks.append(loss)
    return Proof(tuple(checks), figures)


def _with_logits(bundle: Bundle, folder: Path) -> Bundle:
    """A copy of the bundle's graphs in `folder` whose decoder outputs logits."""
    for name in (ENCODER_FILE, DECODER_FILE, WEIGHTS_FILE):
        shutil.copyfile(bundle.path(name), folder / name)
    show_logits(folder)
    return Bundle(folder, bundle.manifest)


def check_names_and_axes(bundle: Bundle) -> Check:
    """Names, types and axes of both graphs match `bundle.graphs`, in its order."""
    size, precision = bundle.manifest.dimensions, bundle.manifest.precision
    faults: list[str] = []
    specs = {ENCODER_FILE: encoder_spec(size, precision)}
    if bundle.manifest.translates:
        specs[DECODER_FILE] = decoder_spec(size, precision, logits=False)
    for name, spec in specs.items():
        graph = onnx.load(bundle.path(name), load_external_data=False).graph
        faults += [f"{name}: {fault}" for fault in _graph_faults(graph, spec)]
    if faults:
        raise VerificationError(f"names and axes: {'; '.join(faults)}")
    return Check("names and axes", "as the table of graphs has them")


def _graph_faults(graph: onnx.GraphProto, spec: GraphSpec) -> list[str]:
    faults: list[str] = []
    for kind, found, wanted in (("inputs", graph.input, spec.inputs), ("outputs", graph.output, spec.outputs)):
        names, right = [value.name for value in found], [tensor.name for tensor in wanted]
        if names != right:
            faults.append(f"{kind} are {names}, should be {right}")
            continue
        for value, tensor in zip(found, wanted, strict=True):
            tensor_type = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type).name
            axes = tuple(axis.dim_param or axis.dim_value for axis in tensor_type.shape.dim)
            faults += shape_faults(tensor, dtype, axes)
    return faults


@dataclass(frozen=True)
class Values:
    """PyTorch's results for sources and targets of random ids. B batch, S source, T target, D model, V vocabulary."""

    sources: list[list[int]]
    targets: list[list[int]]
    states: list[NDArray[np.float32]]
    """The encoder's states of each source, [S, D] without padding."""
    logits: NDArray[np.float32]
    """[B, T, V]."""


@torch.no_grad()
def reference_values(checkpoint: Checkpoint, batch: int, source: int, target: int) -> Values:
    """PyTorch's results for random sources of different lengths, capped at the model's maximum length."""
    config, rules, model = checkpoint.config.architecture, checkpoint.config.decoding, checkpoint.model
    source, target = min(source, config.max_positions), min(target, config.max_positions)
    rng = np.random.default_rng(batch)
    sources = [rng.integers(0, config.source_vocabulary, max(1, source - row)).tolist() for row in range(batch)]
    targets = [rng.integers(0, config.target_vocabulary, target).tolist() for _ in range(batch)]
    ids, lengths = pad(sources, rules.pad_id)
    states = model.encode(ids, lengths)
    fed = torch.tensor([[rules.start_id, *row[:-1]] for row in targets])
    logits = model.projection(model.decode(fed, states, lengths)).numpy()
    unpadded = [rows[: len(source_ids)] for rows, source_ids in zip(states.numpy(), sources, strict=True)]
    return Values(sources, targets, unpadded, logits)


def check_values(
    decoder: GraphDecoder, values: Sequence[Values], config: CheckpointConfig, tolerance: float
) -> tuple[list[Check], float]:
    """Compare shapes, encoder states and logits at several sizes. Also returns the largest difference."""
    chosen = np.setdiff1d(np.arange(config.architecture.target_vocabulary), config.decoding.suppressed_ids)
    worst = 0.0
    for right in values:
        where = f"batch {len(right.sources)}, source {len(right.sources[0])}, target {len(right.targets[0])}"
        for name, difference in _differences(decoder, right, chosen):
            if not difference <= tolerance:
                raise VerificationError(
                    f"states and logits: {name} differ by {difference:.1e} at {where}, more than {tolerance:.0e}"
                )
            worst = max(worst, difference)
    sizes = ", ".join("×".join(map(str, size)) for size in SIZES)
    checks = [
        Check("shapes", f"batch × source × target of {sizes}"),
        Check("states and logits", f"within {worst:.1e} of PyTorch's at the same sizes"),
    ]
    return checks, worst


def _differences(decoder: GraphDecoder, right: Values, chosen: NDArray[np.int64]) -> Iterator[tuple[str, float]]:
    for found, states in zip(decoder.states(right.sources), right.states, strict=True):
        yield "encoder states", largest_difference(found, states)
    for step, arrays in enumerate(decoder.force(right.sources, right.targets)):
        yield "logits", largest_difference(arrays["logits"][:, chosen], right.logits[:, step, chosen])


def largest_difference(found: NDArray[Any], right: NDArray[Any]) -> float:
    """The largest difference, relative to 1 or to the value itself."""
    return float(np.max(np.abs(found - right) / np.maximum(1.0, np.abs(right))))


def check_cached(decoder: GraphDecoder, sample: Sample, tolerance: Tolerance) -> tuple[Check, dict[str, Any]]:
    """Given the reference's prefix, each cached step chooses the token of the uncached reference."""
    steps = 0
    differences: list[float] = []
    for rows in shuffled_batches(len(sample.sources), REFERENCE_ROWS):
        targets = [sample.outputs[row].tokens for row in rows]
        prompts = [sample.prompts[row] for row in rows]
        for step, found in enumerate(decoder.force([sample.sources[row] for row in rows], targets, prompts)):
            for index, row in enumerate(rows):
                right = sample.outputs[row]
                if step >= len(right.margins) or right.margins[step] < tolerance.margin:
                    continue
                token = int(found["next_token"][index, 0])
                if token != right.tokens[step]:
                    raise VerificationError(
                        f"cached equals uncached: text {row}, step {step} chooses {token}, "
                        f"the reference {right.tokens[step]} by a margin of {right.margins[step]:.1e}"
                    )
                steps += 1
                differences.append(abs(float(found["log_prob"][index]) - right.log_probs[step]))
    worst = float(np.max(differences))
    if not worst <= tolerance.log_prob:
        raise VerificationError(f"cached equals uncached: a log-probability differs by {worst:.1e}")
    figures = {"texts": len(sample.sources), "steps": steps, "equal": steps, "log_prob_difference": worst}
    return Check("cached equals uncached", f"{steps} steps, log-probability within {worst:.1e}"), figures


def check_tokens(found: Sequence[Decoded], sample: Sample, tolerance: Tolerance) -> tuple[Check, dict[str, Any]]:
    """Greedy tokens equal the reference's, in each text up to the first step whose margin is too small to decide."""
    whole = 0
    for index, (output, right) in enumerate(zip(found, sample.outputs, strict=True)):
        sure = sure_steps(right.margins, tolerance.margin, len(right.tokens))
        whole += sure == len(right.tokens)
        if output.tokens[:sure] != right.tokens[:sure]:
            place = first_difference(output.tokens, right.tokens)
            raise VerificationError(f"greedy tokens: text {index} differs from the reference at token {place}")
    count = len(sample.outputs)
    if whole < tolerance.whole * count:
        raise VerificationError(
            f"greedy tokens: only {whole} of {count} texts could be compared whole, {tolerance.whole:.0%} are needed; "
            f"each of the others has a step whose two best logits are within {tolerance.margin:.0e}"
        )
    figures = {"texts": count, "equal": count, "compared_whole": whole, "whole_part": whole / count}
    return Check("greedy tokens", f"{count} texts equal the reference's, {whole / count:.1%} compared whole"), figures


def check_loss(decoder: GraphDecoder, float32: Sample, bounds: Loss, accept: bool) -> tuple[Check, dict[str, Any]]:
    """Measure a reduced precision against float32, given float32's prefixes: equal tokens and drop of log-probability.

    `decoder` outputs logits. Raises VerificationError if the loss exceeds `bounds`, unless `accept` is true.
    """
    agreed: list[bool] = []
    drops: list[float] = []
    for rows in shuffled_batches(len(float32.sources), REFERENCE_ROWS):
        outputs = [float32.outputs[row] for row in rows]
        prompts = [float32.prompts[row] for row in rows]
        found = decoder.force([float32.sources[row] for row in rows], [output.tokens for output in outputs], prompts)
        for step, arrays in enumerate(found):
            log_probs = log_softmax(arrays["logits"])
            for index, output in enumerate(outputs):
                if step < len(output.log_probs):
                    agreed.append(int(arrays["next_token"][index, 0]) == output.tokens[step])
                    drops.append(output.log_probs[step] - float(log_probs[index, output.tokens[step]]))
    agreement, drop = float(np.mean(agreed)), float(np.mean(drops))
    detail = f"{agreement:.2%} of {len(agreed)} steps choose as float32, mean log-probability drops by {drop:.4f}"
    if not accept and not (agreement >= bounds.agreement and drop <= bounds.drop):
        raise VerificationError(
            f"loss of precision: {detail}; "
            f"the bounds are {bounds.agreement:.0%} and {bounds.drop}; --force accepts any loss"
        )
    return Check("loss of precision", detail), {"steps": len(agreed), "agreement": agreement, "log_prob_drop": drop}


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """[B, V] -> natural log-probabilities."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
