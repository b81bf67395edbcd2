"""Tokens a second beside CTranslate2: same weights, same threads, same machine, one run, interleaved.

    make bench

Each side decodes the same sources for exactly STEPS tokens, the end token suppressed; ours is the engine's runner,
driven from here. Rows of the table are medians over several rounds, in each of which every contender runs once. Tokens
are compared first, and must be alike in float32.
"""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import click
import numpy as np
import onnxruntime
from tqdm import tqdm

from benchmarks import ctranslate
from benchmarks.models import RULES, opus_shape, write_bundle
from dragoman.export.bundle import Bundle
from dragoman.export.precision import Precision
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.config import DecodingRules
from dragoman.model.transformer import Transformer
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.runner import RowInput

SHIPPED = Path("model/pretrained/en-fr")
STEPS = 32
SOURCE_TOKENS = 25
BATCHES = (1, 8, 32)
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
REST_SECONDS = 0.2
"""Between two contenders, so that threads of the one that spin do not slow the other."""


class Contender(Protocol):
    """Whatever can decode."""

    def translate(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """Exactly `steps` tokens for each source, in one batch."""


@dataclass(frozen=True)
class Ratio:
    """One row of the table."""

    model: str
    precision: Precision
    batch: int
    threads: int
    peer: str
    tokens_per_second: float
    spread: float
    """Of the tokens a second: (largest - smallest) / median over the rounds."""
    peer_tokens_per_second: float
    peer_spread: float
    ratio: float
    equal_rows: int
    """Rows of the batch whose tokens both give alike."""


class Dragoman:
    """The engine's runner, driven step by step."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._start_id = bundle.manifest.decoding.start_id
        self._runner = OrtRunner(bundle, provider="cpu", threads=threads, max_rows=max(BATCHES))

    def translate(self, sources: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """See `Contender`."""
        self._runner.insert(sources, 0)
        columns = [[self._start_id] * len(sources)]
        for position in range(steps):
            found = self._runner.step([RowInput(token, position) for token in columns[-1]])
            columns.append([step.token for step in found])
        return [list(row) for row in zip(*columns[1:], strict=True)]


def measure(
    name: str, model: Transformer, rules: DecodingRules, folder: Path, threads: int, rounds: int
) -> Iterator[Ratio]:
    """All rows of one model, `rules` of which suppress its end token."""
    rng = np.random.default_rng(0)
    body = rng.integers(4, model.config.source_vocabulary, (max(BATCHES), SOURCE_TOKENS - 1)).tolist()
    sources = [[*row, rules.end_ids[0]] for row in body]
    ctranslate.convert(model, rules, folder / "ctranslate2")
    for precision in PRECISIONS:
        ours = Dragoman(write_bundle(folder / precision, model, rules, precision), threads)
        peer = ctranslate.CTranslate2(folder / "ctranslate2", precision, threads)
        for batch in tqdm(BATCHES, desc=f"{name} {precision}", disable=None):
            yield _race(name, precision, threads, ours, peer, sources[:batch], rounds)


def _race(
    name: str,
    precision: Precision,
    threads: int,
    ours: Contender,
    peer: Contender,
    sources: Sequence[Sequence[int]],
    rounds: int,
) -> Ratio:
    equal = sum(a == b for a, b in zip(ours.translate(sources, STEPS), peer.translate(sources, STEPS), strict=True))
    if precision == "float32" and equal < len(sources):
        raise click.ClickException(f"{name}: only {equal} of {len(sources)} float32 rows are alike")
    seconds: dict[Contender, list[float]] = {ours: [], peer: []}
    for _ in range(rounds):
        for contender, times in seconds.items():
            time.sleep(REST_SECONDS)
            started = time.perf_counter()
            contender.translate(sources, STEPS)
            times.append(time.perf_counter() - started)
    tokens = STEPS * len(sources)
    speed, spread = _speed(seconds[ours], tokens)
    peer_speed, peer_spread = _speed(seconds[peer], tokens)
    ratio = round(speed / peer_speed, 2)
    return Ratio(
        name, precision, len(sources), threads, "ctranslate2", speed, spread, peer_speed, peer_spread, ratio, equal
    )


def _speed(seconds: list[float], tokens: int) -> tuple[float, float]:
    median = statistics.median(seconds)
    return round(tokens / median, 1), round((max(seconds) - min(seconds)) / median, 2)


def conditions() -> dict[str, str]:
    """On what was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "processor": processor,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "ctranslate2": ctranslate.VERSION,
    }


def as_markdown(rows: Sequence[Ratio]) -> str:
    """The table that the README quotes."""
    lines = [
        "| model | precision | threads | batch | tokens/s | CTranslate2 | ratio | rows alike |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.model} | {row.precision} | {row.threads} | {row.batch} | {row.tokens_per_second:,.0f} "
        f"| {row.peer_tokens_per_second:,.0f} | {row.ratio:.2f} | {row.equal_rows} of {row.batch} |"
        for row in rows
    ]
    return "\n".join(lines)


@click.command()
@click.option("--threads", type=click.IntRange(1), multiple=True, default=(1, 2), show_default=True)
@click.option("--rounds", type=click.IntRange(5), default=5, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/bench"), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("benchmarks/results"), show_default=True)
def main(threads: tuple[int, ...], rounds: int, work: Path, output: Path) -> None:
    """Measure both models, and write OUTPUT/latest.json and latest.md."""
    shipped = load_checkpoint(SHIPPED)
    decoding = shipped.config.decoding
    endless = replace(decoding, suppressed_ids=(*decoding.suppressed_ids, *decoding.end_ids))
    rows: list[Ratio] = []
    for count in threads:
        rows += measure("opus-shape", opus_shape(), RULES, work / "opus-shape", count, rounds)
        rows += measure("en-fr", shipped.model, endless, work / "en-fr", count, rounds)
    output.mkdir(parents=True, exist_ok=True)
    results = {**conditions(), "ratios": [asdict(row) for row in rows]}
    (output / "latest.json").write_text(json.dumps(results, indent=2) + "\n")
    (output / "latest.md").write_text(as_markdown(rows) + "\n")
    print(as_markdown(rows))


if __name__ == "__main__":
    main()
