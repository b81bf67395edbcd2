"""Agreement of float16 on a GPU with float32 on the CPU, and its throughput compared with the peers.

    benchmarks/speed/gpu.sh WHEELS          in an environment of its own, made of a folder of wheels
    python -m benchmarks.speed.gpu          in the one at hand; --provider cpu tries everything but the GPU

Each model is exported in float16 and float32. First tokens: those of the provider against those of float32 on the CPU,
and those of sources alone against the same in batches. Then tokens a second for exactly STEPS steps, the end token
suppressed, in turns with CTranslate2 and PyTorch. Each line is printed as it is found, and written into OUTPUT; what is
not installed, or fails, is named and left out. Ends with status 1 where the provider is not to be had, or where less
than nine tenths of the tokens of texts are float32's.
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
from benchmarks.speed.reference import agreement, alike
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
"""Of the tokens of texts; random weights may choose between words that are hardly apart."""

DISTRIBUTIONS = ("onnxruntime-gpu", "onnxruntime", "ctranslate2", "torch", "transformers")


class Steps(Protocol):
    """Whatever decodes greedily."""

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """Exactly `steps` tokens for each source, in one batch, the end token suppressed."""


@dataclass(frozen=True)
class Wanted:
    """How much is measured."""

    provider: Provider
    batches: tuple[int, ...]
    steps: int
    rounds: int
    part_seconds: float
    """After so long no further round of a batch is begun."""
    texts: int
    """That tokens are compared on."""


@dataclass(frozen=True)
class Bundles:
    """Exports of one model, by precision."""

    ending: Mapping[Precision, Bundle]
    endless: Mapping[Precision, Bundle]


@dataclass(frozen=True)
class Tokens:
    """Whether they are the same."""

    model: str
    precision: Precision
    sources: int
    equal_sources: int
    """Whose tokens are those of float32 on the CPU, from end to end."""
    equal_tokens: float
    """The part that is the same at its place."""
    equal_in_batches: int
    """Sources whose tokens in a batch are those that they have alone."""

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.precision}: {self.equal_sources} of {self.sources} sources and "
            f"{self.equal_tokens:.1%} of the tokens as float32 on the CPU; {self.equal_in_batches} of {self.sources} "
            "the same alone and in a batch"
        )


@dataclass(frozen=True)
class Fast:
    """How fast one contender is."""

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
    tokens: list[Tokens] = field(default_factory=list)
    speeds: list[Fast] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, found: Tokens | Fast) -> None:
        """Print and write it."""
        click.echo(str(found))
        if isinstance(found, Tokens):
            self.tokens.append(found)
        else:
            self.speeds.append(found)
        self.write()

    def leave_out(self, what: str, error: Exception) -> None:
        """Report an unavailable part by name."""
        self.left_out.append(f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())}")
        click.echo(f"left out: {self.left_out[-1]}", err=True)
        self.write()

    def write(self) -> None:
        """Replace the file."""
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
    """The model in each precision, with its own ends and without any."""
    click.echo(f"{measured.name}: exporting")
    endless = {
        each: write_bundle(folder / f"{each}-endless", measured.model, measured.endless, each) for each in PRECISIONS
    }
    if measured.tokenizer is None:
        # Random weights come to an end by chance alone.
        return Bundles(endless, endless)
    ending = {each: write_bundle(folder / each, measured.model, measured.rules, each) for each in PRECISIONS}
    return Bundles(ending, endless)


def compare(measured: Measured, bundles: Mapping[Precision, Bundle], wanted: Wanted) -> Iterator[Tokens]:
    """The tokens of the provider, in each precision, against those of float32 on the CPU."""
    sources = sources_of(measured, wanted.texts)
    longest = measured.rules.max_output_tokens if measured.tokenizer else wanted.steps
    right = Dragoman(bundles["float32"], allowed_cpus()).outputs(sources, longest)
    for precision, bundle in bundles.items():
        beside = ours(bundle, wanted.provider, ROWS).outputs(sources, longest)
        alone = ours(bundle, wanted.provider, 1).outputs(sources, longest)
        yield Tokens(
            model=measured.name,
            precision=precision,
            sources=len(sources),
            equal_sources=alike(beside, right),
            equal_tokens=agreement(beside, right),
            equal_in_batches=alike(beside, alone),
        )


def sources_of(measured: Measured, count: int) -> list[list[int]]:
    """Sentences, or where the model has no words random numbers."""
    if measured.tokenizer is None:
        return random_sources(measured, count)
    encode, most = measured.tokenizer.encode, measured.rules.max_source_tokens
    return [cut(encode(pair.source), most) for pair in read_pairs(DATA)[:count]]


def ours(bundle: Bundle, provider: Provider, rows: int) -> Dragoman:
    """The serving engine on the provider."""
    return Dragoman(bundle, allowed_cpus(), provider, rows)


# --- tokens a second


class Torch:
    """PyTorch model on the provider's device; `decode` creates its tensors on the default device."""

    def __init__(self, device: str, decode: Callable[[Sequence[Sequence[int]], int], list[list[int]]]) -> None:
        self._device = device
        self._decode = decode

    def steps(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """See `Steps`."""
        with torch.device(self._device):
            return self._decode(sources, steps)


def contenders(
    measured: Measured, bundles: Mapping[Precision, Bundle], folder: Path, wanted: Wanted, findings: Findings
) -> dict[Key, Steps]:
    """Those that can be had, by name and precision."""
    device, most = wanted.provider, max(wanted.batches)
    found: dict[Key, Steps] = {(OURS, each): ours(bundle, device, most) for each, bundle in bundles.items()}
    precision: Precision = "float16" if device == "cuda" else "float32"
    openers: dict[str, Callable[[Transformer, DecodingRules, Path, Provider], Steps]] = {
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


def _ctranslate2(model: Transformer, rules: DecodingRules, folder: Path, device: Provider) -> Steps:
    from benchmarks.speed.ctranslate import CTranslate2, convert

    convert(model, rules, folder)
    return CTranslate2(folder, rules, "float16" if device == "cuda" else "float32", allowed_cpus(), device)


def _transformers(model: Transformer, rules: DecodingRules, folder: Path, device: Provider) -> Steps:
    from benchmarks.speed.hugging_face import open_transformers, rebuild

    theirs = _moved(rebuild(model, rules), device)
    return Torch(device, open_transformers(theirs, rules, allowed_cpus()).steps)


def _reference(model: Transformer, rules: DecodingRules, device: Provider) -> Steps:
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


def race(measured: Measured, runners: dict[Key, Steps], wanted: Wanted, findings: Findings) -> Iterator[Fast]:
    """Every contender with every batch; one that fails is left out from there on."""
    sources = random_sources(measured, max(wanted.batches))
    for batch in wanted.batches:
        found: dict[Key, list[float]] = {key: [] for key in runners}
        end = time.monotonic() + wanted.part_seconds
        for number in range(wanted.rounds + 1):
            # The first round warms up.
            if number > 1 and time.monotonic() > end:
                break
            for key in [*runners][:: 1 if number % 2 else -1]:
                started = time.perf_counter()
                try:
                    runners[key].steps(sources[:batch], wanted.steps)
                except Exception as error:
                    findings.leave_out(f"{measured.name}, batch {batch}, {' '.join(key)}", error)
                    del runners[key], found[key]
                else:
                    found[key] += [time.perf_counter() - started] if number else []
        for (name, precision), times in found.items():
            fast: Speed = speed(times, wanted.steps * batch)
            yield Fast(measured.name, name, precision, batch, fast.per_second, fast.spread, len(times))


# --- the command


def device_name(provider: Provider) -> str:
    """What the driver calls the GPU; nothing on the CPU, or without its tool."""
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
@click.option("--part-seconds", type=float, default=20.0, show_default=True, help="Most time for one batch size.")
@click.option("--texts", type=click.IntRange(1), default=64, show_default=True, help="Whose tokens are compared.")
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
    """Compare and measure. About 5 minutes on a GPU."""
    fault = cuda_fault() if provider == "cuda" else None
    if fault is not None:
        raise click.ClickException(f"provider cuda cannot run here: {fault}")
    wanted = Wanted(provider, batches, steps, rounds, part_seconds, texts)
    versions = [name for name in DISTRIBUTIONS if installed(name)]
    told = conditions("benchmarks/speed/gpu.sh", versions, rounds)
    findings = Findings(output, {**told, "provider": provider, "device": device_name(provider)})
    for name in models:
        measure(MODELS[name](), work / name, wanted, findings)
    wrong = [each for each in findings.tokens if each.model == "en-fr" and each.equal_tokens < MIN_AGREEMENT]
    click.echo(f"written to {output}")
    if wrong:
        raise click.ClickException("; ".join(map(str, wrong)))
    if not findings.speeds or not findings.tokens:
        raise click.ClickException("nothing could be measured")


def measure(measured: Measured, folder: Path, wanted: Wanted, findings: Findings) -> None:
    """One model, from its export on; what fails is named."""
    try:
        bundles = export(measured, folder)
    except Exception as error:
        findings.leave_out(f"{measured.name}, export", error)
        return
    parts: tuple[tuple[str, Callable[[], Iterator[Tokens | Fast]]], ...] = (
        ("tokens", partial(compare, measured, bundles.ending, wanted)),
        (
            "speed",
            lambda: race(measured, contenders(measured, bundles.endless, folder, wanted, findings), wanted, findings),
        ),
    )
    for what, part in parts:
        try:
            for found in part():
                findings.add(found)
        except Exception as error:
            findings.leave_out(f"{measured.name}, {what}", error)


if __name__ == "__main__":
    main()
