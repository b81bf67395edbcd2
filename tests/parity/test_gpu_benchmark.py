"""`benchmarks/speed/gpu.sh` and `benchmarks.speed.gpu`, without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.measured_models import Measured
from benchmarks.speed import gpu
from benchmarks.speed.contenders import Key
from tests.support.tiny import random_model, tiny_rules

SCRIPT = Path("benchmarks/speed/gpu.sh")

SMALL = ("--batch", "1", "--batch", "3", "--steps", "4", "--rounds", "2", "--texts", "5")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Measured:
    measured = Measured("tiny", random_model(), tiny_rules(), tokenizer=None)
    monkeypatch.setattr(gpu, "MODELS", {"opus-shape": lambda: measured})
    return measured


@pytest.mark.usefixtures("tiny")
def test_all_parts_run_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in ("ctranslate2", "transformers"):
        monkeypatch.setitem(sys.modules, peer, None)
    output = tmp_path / "gpu.json"
    paths = ("--work", str(tmp_path), "--output", str(output))
    result = CliRunner().invoke(gpu.main, ["--provider", "cpu", "--model", "opus-shape", *SMALL, *paths])
    assert result.exit_code == 0, result.output
    found = json.loads(output.read_text())
    assert [(each["precision"], each["sources"], each["equal_in_batches"]) for each in found["tokens"]] == [
        ("float16", 5, 5),
        ("float32", 5, 5),
    ]
    assert found["tokens"][1]["equal_sources"] == 5
    raced = {(each["contender"], each["precision"], each["batch"]) for each in found["speeds"]}
    reference = "pytorch reference, uncached"
    ours = {("dragoman", precision, batch) for precision in ("float16", "float32") for batch in (1, 3)}
    assert raced == ours | {(reference, "float32", batch) for batch in (1, 3)}
    assert all(each["tokens_per_second"] > 0 and each["rounds"] == 2 for each in found["speeds"])
    assert [each.split(":")[0] for each in found["left_out"]] == ["tiny, ctranslate2", "tiny, transformers"]
    assert found["conditions"]["provider"] == "cpu"


def test_a_failing_contender_is_named_and_the_others_continue(
    tiny: Measured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        def steps(self, sources: object, steps: int) -> list[list[int]]:
            raise RuntimeError("out of\nmemory")

    class Sound:
        def steps(self, sources: list[object], steps: int) -> list[list[int]]:
            return [[0] * steps for _ in sources]

    workload = gpu.Workload("cpu", (1, 2), 4, 2, 10.0, 1)
    findings = gpu.Findings(tmp_path / "gpu.json", {})
    runners: dict[Key, gpu.StepDecoder] = {("bad", "float16"): Failing(), ("good", "float16"): Sound()}  # type: ignore[dict-item]
    rows = list(gpu.race(tiny, runners, workload, findings))
    assert [(each.contender, each.batch) for each in rows] == [("good", 1), ("good", 2)]
    assert findings.left_out == ["tiny, batch 1, bad float16: RuntimeError: out of memory"]
    assert "left out: tiny, batch 1" in capsys.readouterr().err


def test_a_missing_gpu_is_an_error_with_the_reason(tmp_path: Path) -> None:
    result = CliRunner().invoke(gpu.main, ["--output", str(tmp_path / "gpu.json")])
    assert result.exit_code == 1
    assert "provider cuda cannot run here: this ONNX Runtime has " in result.output


def test_the_script_reports_a_missing_gpu_before_installing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (nvidia := tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    nvidia.chmod(0o755)
    path = f"{nvidia.parent}:/usr/bin:/bin"
    run = subprocess.run([SCRIPT, tmp_path], capture_output=True, text=True, env={"PATH": path})
    assert (run.returncode, run.stdout) == (3, "")
    assert run.stderr.startswith("no NVIDIA GPU here")


def test_the_script_requires_a_folder_of_wheels(tmp_path: Path) -> None:
    run = subprocess.run([SCRIPT, tmp_path / "none"], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: benchmarks/speed/gpu.sh WHEELS")
