import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from dragoman.client.values import ModelInfo
from dragoman.service.banner import announcement, try_line

MODEL = ModelInfo(
    "en-fr", "0123", "transformer", ("en",), ("fr", "de"), "float32", "CPUExecutionProvider", 1, 1, 1, 1, 2
)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory, where `dragoman` runs as .venv/bin/dragoman."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv" / "bin" / "dragoman"), "serve"])
    return tmp_path


def test_the_command_to_try_works_from_here(called: Path) -> None:
    assert try_line(("fr",), "127.0.0.1", 50051) == '.venv/bin/dragoman translate --to fr "The cat sat on the mat."'


def test_an_encoder_is_tried_with_embed(called: Path) -> None:
    assert try_line((), "127.0.0.1", 50051) == '.venv/bin/dragoman embed "The cat sat on the mat."'


def test_a_command_called_by_a_relative_path_keeps_it(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/dragoman", "serve"])
    assert try_line(("fr",), "127.0.0.1", 50051).startswith(".venv/bin/dragoman translate ")


def test_a_command_on_the_path_has_its_short_name(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/dragoman"])
    assert try_line(("fr",), "127.0.0.1", 50051).startswith("/opt/bin/dragoman translate ")
    monkeypatch.setattr(shutil, "which", lambda _: "/opt/bin/dragoman")
    assert try_line(("fr",), "127.0.0.1", 50051).startswith("dragoman translate ")


def test_another_program_is_not_named_as_the_command(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(called / "pytest")])
    assert try_line(("fr",), "127.0.0.1", 50051).startswith("dragoman translate ")


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 50052, "127.0.0.1:50052"),
        ("0.0.0.0", 50052, "127.0.0.1:50052"),
        ("10.0.0.7", 50051, "10.0.0.7:50051"),
        ("::1", 50051, "[::1]:50051"),
    ],
)
def test_an_address_is_given_unless_it_is_the_default(called: Path, host: str, port: int, address: str) -> None:
    assert f"translate --to fr --address {address} " in try_line(("fr",), host, port)


def test_all_interfaces_include_the_default_address(called: Path) -> None:
    assert "--address" not in try_line(("fr",), "0.0.0.0", 50051)


def test_the_announcement_names_models_and_addresses(called: Path) -> None:
    assert announcement([MODEL], "127.0.0.1", 50051, "127.0.0.2", 9464).splitlines() == [
        "Serving en-fr, version 0123: float32 on CPUExecutionProvider, 2 threads.",
        "gRPC on 127.0.0.1:50051, metrics on http://127.0.0.2:9464/metrics",
        'Try: .venv/bin/dragoman translate --to fr "The cat sat on the mat."',
    ]


def test_float16_on_the_cpu_has_a_warning(called: Path) -> None:
    model = dataclasses.replace(MODEL, precision="float16")
    assert announcement([model], "127.0.0.1", 50051, "127.0.0.1", 9464).splitlines()[:2] == [
        "Serving en-fr, version 0123: float16 on CPUExecutionProvider, 2 threads.",
        "Warning: float16 is meant for CUDA and is slow on the CPU; export int8 or float32 instead.",
    ]
    on_cuda = dataclasses.replace(model, provider="CUDAExecutionProvider")
    assert "Warning" not in announcement([on_cuda], "127.0.0.1", 50051, "127.0.0.1", 9464)
