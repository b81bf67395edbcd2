"""Benchmark commands on the tiny bundle: output and checks, not speed."""

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.measured_models import Measured
from benchmarks.quality import exactness
from benchmarks.reliability import soak
from benchmarks.speed import overhead
from benchmarks.speed.contenders import ROWS, Dragoman, Key, Opener, prepare_ours, prepare_peers
from benchmarks.speed.reference import check, reference
from benchmarks.speed.steps import STEPS, random_sources
from dragoman.bundle.manifest import Bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.service.cli import main as dragoman
from dragoman.service.engine.offline import Offline
from tests.support.tiny import random_model, sentences, tiny_rules


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured("tiny", random_model(), tiny_rules(), tokenizer=None)


@pytest.fixture(scope="module")
def endless(measured: Measured, tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Opener]:
    return prepare_ours(tmp_path_factory.mktemp("endless"), measured.model, measured.endless)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.tsv"
    path.write_text("".join(f"tiny\t{text}\t{text}\n" for text in sentences(40)))
    return path


class TestContenders:
    def test_steps_give_the_exact_number_of_reference_tokens(
        self, measured: Measured, endless: dict[Key, Opener]
    ) -> None:
        sources = random_sources(measured)
        found = endless["dragoman", "float32"](1).steps(sources, STEPS)
        assert [len(tokens) for tokens in found] == [STEPS] * ROWS
        assert check("dragoman", found, reference(measured.model, measured.endless, sources, STEPS)) > 0

    def test_int8_steps_give_the_exact_number_of_tokens(self, measured: Measured, endless: dict[Key, Opener]) -> None:
        found = endless["dragoman", "int8"](1).steps(random_sources(measured)[:3], STEPS)
        assert [len(tokens) for tokens in found] == [STEPS] * 3

    def test_outputs_end_at_the_end_token_of_the_model(self, checkpoint: Checkpoint, bundle: Bundle) -> None:
        sources = [checkpoint.tokenizer.encode(text) for text in sentences(50)]
        found = Dragoman(bundle, threads=1).outputs(sources, 40)
        expected = reference(checkpoint.model, checkpoint.config.decoding, sources, 40)
        assert check("dragoman", found, expected) > 0
        assert len({len(tokens) for tokens in found}) > 5


def test_a_missing_peer_is_left_out_by_name(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert prepare_peers(["ctranslate2"], tmp_path, measured.model, measured.rules) == {}
    assert capsys.readouterr().err.startswith("ctranslate2 is left out: ")


def test_exactness_counts_every_sentence_in_every_order(bundle: Bundle, data: Path) -> None:
    arguments = [str(bundle.folder), "--data", str(data), "--rows", "3", "--rows", "8", "--orders", "2"]
    result = CliRunner().invoke(exactness.main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("float32: 40 sentences alone")
    for rows in (3, 8):
        for order in (0, 1):
            assert (
                f"{rows} rows, order {order}: 40 of 40 with equal tokens, 40 with bit-equal scores as well"
                in result.output
            )


def test_exactness_fails_if_an_answer_differs(bundle: Bundle, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(engine: Offline, sources: Sequence[Sequence[int]], rows: int, seed: int) -> list[exactness.Answer]:
        expected = exactness.alone(engine, sources)
        return [dataclasses.replace(expected[0], tokens=(9,)), *expected[1:]]

    monkeypatch.setattr(exactness, "among_others", altered)
    arguments = [str(bundle.folder), "--data", str(data), "--rows", "3", "--orders", "1"]
    result = CliRunner().invoke(exactness.main, arguments)
    assert result.exit_code == 1
    assert "Error: answers that depend on the rest of the batch: 1" in result.output


def test_overhead_measures_the_steps_of_the_engine(
    measured: Measured, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "write_bundle", lambda *_: bundle)
    share = overhead.measure(measured, "float32", tmp_path, threads=1, rows=4, steps=8)
    assert 0 < share.graph_seconds < share.iteration_seconds
    assert 0 < share.outside < 1


def test_soak_prints_the_memory_of_each_quarter(bundle: Bundle, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(soak, "MAX_GROWTH", 10.0)  # 40 requests measure only the warm-up
    monkeypatch.setattr(soak, "MAX_IDLE_SHARE", 10.0)
    arguments = [str(bundle.folder), "--requests", "40", "--clients", "4", "--idle-seconds", "0.1"]
    result = CliRunner().invoke(soak.main, [*arguments, "--data", str(data)])
    assert result.exit_code == 0, result.output
    assert re.findall(r"after (\d+) requests: \d+\.\d MiB", result.output) == ["10", "20", "30", "40"]


@pytest.mark.parametrize("options", [[], ["--tune"]])
def test_bench_prints_one_line_per_batch_size(bundle: Bundle, options: list[str]) -> None:
    arguments = ["bench", str(bundle.folder), "--cpus", "1", "--seconds", "0.01", *options]
    result = CliRunner().invoke(dragoman, arguments)
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["lanes", "threads", "each", "texts", "in", "each", "tokens/s", "sentences/s"]
    assert [line.split()[:3] for line in lines[:3]] == [["1", "1", "1"], ["1", "1", "8"], ["1", "1", "32"]]
    advice = f"Most tokens a second, with 32 texts in each lane: dragoman serve {bundle.folder}"
    assert lines[3:] == ([f"{advice} --lanes 1 --threads-per-lane 1"] if options else [])


def test_bench_refuses_a_folder_without_a_manifest(tmp_path: Path) -> None:
    result = CliRunner().invoke(dragoman, ["bench", str(tmp_path)])
    assert result.exit_code == 1
    assert "manifest.json: missing" in result.output
