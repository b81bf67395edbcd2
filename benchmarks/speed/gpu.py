"""Agreement of float16 on a GPU with float32 on the CPU, and its throughput compared with the peers.

    benchmarks/speed/gpu.sh WHEELS          in a new environment, installed from a folder of wheels
    python -m benchmarks.speed.gpu          in the current environment; --provider cpu tries everything but the GPU

Each model is exported in float16 and float32. Its tokens are compared first: on the provider with float32 on the CPU,
and alone with batched. Then throughput is measured over exactly STEPS steps, the end token suppressed, in turns with
CTranslate2 and PyTorch. Each result is printed and written to OUTPUT at once; failures and missing packages are named
and left out. Exits with status 1 if the provider is unavailable, or if less than nine tenths of the shipped model's
tokens agree with float32.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import click
import torch

from benchmarks.measured_models import MODELS, Measured, write_bundle
from benchmarks.options import installed
from benchmarks.results_file import conditions
from benchmarks.speed.contenders import OURS, ROWS, Dragoman, Key
from benchmarks.speed.reference import agreement, equal_rows
from benchmarks.speed.sentences import DATA
from benchmarks.speed.steps import random_sources
from benchmarks.timing import Speed, speed
from dragoman.bundle.cpus import allowed_cpus
from dragoman.bundle.manifest import Bundle
from dragoman.bundle.precision import Precision
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import cut
from dragoman.model.greedy import greedy
from dragoman.model.training.corpus import read_pairs
from dragoman.model.transformer import Transformer
from dragoman.service.engine.providers import cuda_fault

Provider = Literal["cpu", "cuda"]

PRECISIONS: tuple[Precision, ...] = ("float16", "float32")

MIN_AGREEMENT = 0.9
"""Share of equal tokens required of the shipped model. Random weights are exempt: their best logits may be close."""

DISTRIBUTIONS = ("onnxruntime-gpu", "onnxruntime", "ctranslate2", "torch", "transformers")


class StepDecoder(Protocol):
    """Greedy decoder of a fixed number of steps."""

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """Exactly `steps` tokens for each source, in one batch, the end token suppressed."""


@dataclass(frozen=True)
class Workload:
    """Provider and amount of work."""

    provider: Provider
    batches: tuple[int, ...]
    steps: int
    rounds: int
    part_seconds: float
    """Time after which no further round of a batch starts."""
    texts: int
    """Number of texts whose tokens are compared."""


@dataclass(frozen=True)
class Bundles:
    """Exports of one model, by precision."""

    ending: Mapping[Precision, Bundle]
    endless: Mapping[Precision, Bundle]


@dataclass(frozen=True)
class TokenAgreement:
    """Agreement of one export with float32 on the CPU, and with itself in batches."""

    model: str
    precision: Precision
    sources: int
    equal_sources: int
    """Sources whose tokens all equal those of float32 on the CPU."""
    equal_tokens: float
    """Share of equal tokens, by position."""
    equal_in_batches: int
    """Sources with the same tokens alone and in a batch."""

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.precision}: {self.equal_sources} of {self.sources} sources and "
            f"{self.equal_tokens:.1%} of the tokens equal float32 on the CPU; "
            f"{self.equal_in_batches} of {self.sources} sources equal alone and in a batch"
        )


@dataclass(frozen=True)
class ContenderSpeed:
    """Throughput of one contender at one batch size."""

    model: str
    contender: str
    precision: Precision
    batch: int
    tokens_per_second: float
    spread: float
    rounds: int

    def __str__(self) -> str:
        return (
            f"{self.model}, batch {self.batch}: {self.contender} {self.precision} {self.tokens_per_second:,.0f} "
            f"tokens/s (spread {self.spread:.0%}, {self.rounds} rounds)"
        )


@dataclass
class Findings:
    """Results so far, rewritten after each part."""

    path: Path
    conditions: Mapping[str, Any]
    tokens: list[TokenAgreement] = field(default_factory=list)
    speeds: list[ContenderSpeed] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, result: TokenAgreement | ContenderSpeed) -> None:
        """Print a result and write the file."""
        click.echo(str(result))
        if isinstance(result, TokenAgreement):
            self.tokens.append(result)
        else:
            self.speeds.append(result)
        self.write()

    def leave_out(self, part: str, error: Exception) -> None:
        """Report a failed or unavailable part by name."""
        self.left_out.append(f"{part}: {' '.join(f'{type(error).__name__}: {error}'.split())}")
        click.echo(f"left out: {self.left_out[-1]}", err=True)
        self.write()

    def write(self) -> None:
        """Rewrite the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "conditions": self.conditions,
            "tokens": [asdict(each) for each in self.tokens],
            "speeds": [asdict(each) for each in self.speeds],
            "left_out": self.left_out,
        }
        self.path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# --- tokens


def export(measured: Measured, folder: Path) -> Bundles:
    """Export the model in each precision, with its end tokens and with them suppressed."""
    click.echo(f"{measured.name}: exporting")
    endless = {
        each: write_bundle(folder / f"{each}-endless", measured.model, measured.endless, each) for each in PRECISIONS
    }
    if measured.tokenizer is None:
        # Random weights reach an end token only by chance.
        return Bundles(endless, endless)
    ending = {each: write_bundle(folder / each, measured.model, measured.rules, each) for each in PRECISIONS}
    return Bundles(ending, endless)


def compare(measured: Measured, bundles: Mapping[Precision, Bundle], workload: Workload) -> Iterator[TokenAgreement]:
    """Compare the provider's tokens, in each precision, with those of float32 on the CPU."""
    sources = sources_of(measured, workload.texts)
    max_tokens = measured.rules.max_output_tokens if measured.tokenizer else workload.steps
    expected = Dragoman(bundles["float32"], allowed_cpus()).outputs(sources, max_tokens)
    for precision, bundle in bundles.items():
        batched = ours(bundle, workload.provider, ROWS).outputs(sources, max_tokens)
        alone = ours(bundle, workload.provider, 1).outputs(sources, max_tokens)
        yield TokenAgreement(
            model=measured.name,
            precision=precision,
            sources=len(sources),
            equal_sources=equal_rows(batched, expected),
            equal_tokens=agreement(batched, expected),
            equal_in_batches=equal_rows(batched, alone),
        )


def sources_of(measured: Measured, count: int) -> list[list[int]]:
    """Encoded sentences, or random ids if the model has no tokenizer."""
    if measured.tokenizer is None:
        return random_sources(measured, count)
    encode, max_tokens = measured.tokenizer.encode, measured.rules.max_source_tokens
    return [cut(encode(pair.source), max_tokens) for pair in read_pairs(DATA)[:count]]


def ours(bundle: Bundle, provider: Provider, rows: int) -> Dragoman:
    """Serving engine on the provider."""
    return Dragoman(bundle, allowed_cpus(), provider, rows)


# --- throughput


class Torch:
    """PyTorch model on the provider's device; `decode` creates its tensors on the default device."""

    def __init__(self, device: str, decode: Callable[[Sequence[Sequence[int]], int], list[list[int]]]) -> None:
        self._device = device
        self._decode = decode

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """See `StepDecoder`."""
        with torch.device(self._device):
            return self._decode(sources, steps)


def contenders(
    measured: Measured, bundles: Mapping[Precision, Bundle], folder: Path, workload: Workload, findings: Findings
) -> dict[Key, StepDecoder]:
    """Available contenders, by name and precision; the others are left out by name."""
    device, rows = workload.provider, max(workload.batches)
    found: dict[Key, StepDecoder] = {(OURS, each): ours(bundle, device, rows) for each, bundle in bundles.items()}
    precision: Precision = "float16" if device == "cuda" else "float32"
    openers: dict[str, Callable[[Transformer, DecodingRules, Path, Provider], StepDecoder]] = {
        "ctranslate2": _ctranslate2,
        "transformers": _transformers,
    }
    for name, opener in openers.items():
        try:
            found[name, precision] = opener(measured.model, measured.endless, folder / name, device)
        except Exception as error:
            findings.leave_out(f"{measured.name}, {name}", error)
    if ("transformers", precision) not in found:
        found["pytorch reference, uncached", precision] = _reference(measured.model, measured.endless, device)
    return found


def _ctranslate2(model: Transformer, rules: DecodingRules, folder: Path, device: Provider) -> StepDecoder:
    from benchmarks.speed.ctranslate import CTranslate2, convert

    convert(model, rules, folder)
    return CTranslate2(folder, rules, "float16" if device == "cuda" else "float32", allowed_cpus(), device)


def _transformers(model: Transformer, rules: DecodingRules, folder: Path, device: Provider) -> StepDecoder:
    from benchmarks.speed.hugging_face import open_transformers, rebuild

    peer = _moved(rebuild(model, rules), device)
    return Torch(device, open_transformers(peer, rules, allowed_cpus()).steps)


def _reference(model: Transformer, rules: DecodingRules, device: Provider) -> StepDecoder:
    moved = _moved(_copy(model), device)

    def decode(sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        return [list(output.tokens) for output in greedy(moved, rules, sources, [steps] * len(sources))]

    return Torch(device, decode)


def _copy(model: Transformer) -> Transformer:
    copy = Transformer(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def _moved(model: Any, device: Provider) -> Any:
    return model.half().to(device) if device == "cuda" else model


def race(
    measured: Measured, runners: dict[Key, StepDecoder], workload: Workload, findings: Findings
) -> Iterator[ContenderSpeed]:
    """Time every contender at every batch size; a contender that fails is left out from then on."""
    sources = random_sources(measured, max(workload.batches))
    for batch in workload.batches:
        found: dict[Key, list[float]] = {key: [] for key in runners}
        end = time.monotonic() + workload.part_seconds
        for number in range(workload.rounds + 1):
            # Round 0 warms up and is not counted.
            if number > 1 and time.monotonic() > end:
                break
            for key in [*runners][:: 1 if number % 2 else -1]:
                started = time.perf_counter()
                try:
                    runners[key].steps(sources[:batch], workload.steps)
                except Exception as error:
                    findings.leave_out(f"{measured.name}, batch {batch}, {' '.join(key)}", error)
                    del runners[key], found[key]
                else:
                    found[key] += [time.perf_counter() - started] if number else []
        for (name, precision), times in found.items():
            throughput: Speed = speed(times, workload.steps * batch)
            yield ContenderSpeed(
                measured.name, name, precision, batch, throughput.per_second, throughput.spread, len(times)
            )


# --- the command


def device_name(provider: Provider) -> str:
    """GPU name, driver version and memory; empty on the CPU, "unknown" if nvidia-smi fails."""
    if provider == "cpu":
        return ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@click.command()
@click.option("--provider", type=click.Choice(("cuda", "cpu")), default="cuda", show_default=True)
@click.option("--model", "models", type=click.Choice(list(MODELS)), multiple=True, default=[*MODELS][::-1])
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, default=(1, 8, 32, 128), show_default=True)
@click.option("--steps", type=click.IntRange(1, 256), default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--part-seconds", type=float, default=20.0, show_default=True, help="No round of a batch size starts later."
)
@click.option("--texts", type=click.IntRange(1), default=64, show_default=True, help="Texts whose tokens are compared.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/gpu"), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/gpu/gpu.json"), show_default=True)
def main(
    provider: Provider,
    models: Sequence[str],
    batches: tuple[int, ...],
    steps: int,
    rounds: int,
    part_seconds: float,
    texts: int,
    work: Path,
    output: Path,
) -> None:
    """Compare tokens and measure throughput. About 5 minutes on a GPU."""
    fault = cuda_fault() if provider == "cuda" else None
    if fault is not None:
        raise click.ClickException(f"provider cuda cannot run here: {fault}")
    workload = Workload(provider, batches, steps, rounds, part_seconds, texts)
    versions = [name for name in DISTRIBUTIONS if installed(name)]
    measured_on = conditions("benchmarks/speed/gpu.sh", versions, rounds)
    findings = Findings(output, {**measured_on, "provider": provider, "device": device_name(provider)})
    for name in models:
        measure(MODELS[name](), work / name, workload, findings)
    disagreeing = [each for each in findings.tokens if each.model == "en-fr" and each.equal_tokens < MIN_AGREEMENT]
    click.echo(f"written to {output}")
    if disagreeing:
        raise click.ClickException("; ".join(map(str, disagreeing)))
    if not findings.speeds or not findings.tokens:
        raise click.ClickException("nothing could be measured")


def measure(measured: Measured, folder: Path, workload: Workload, findings: Findings) -> None:
    """Export one model and run every part; failures are reported by name."""
    try:
        bundles = export(measured, folder)
    except Exception as error:
        findings.leave_out(f"{measured.name}, export", error)
        return
    parts: tuple[tuple[str, Callable[[], Iterator[TokenAgreement | ContenderSpeed]]], ...] = (
        ("tokens", partial(compare, measured, bundles.ending, workload)),
        (
            "speed",
            lambda: race(
                measured, contenders(measured, bundles.endless, folder, workload, findings), workload, findings
            ),
        ),
    )
    for label, part in parts:
        try:
            for result in part():
                findings.add(result)
        except Exception as error:
            findings.leave_out(f"{measured.name}, {label}", error)


if __name__ == "__main__":
    main()
