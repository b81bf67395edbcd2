"""Execution providers requested from ONNX Runtime, and errors if CUDA is unavailable."""

import ctypes
import types
from pathlib import Path
from typing import Any

import pytest

from dragoman.service.engine.providers import CudaOptions, ProviderError, cuda_fault, provider_in_use, session_providers

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def install(monkeypatch: pytest.MonkeyPatch, *providers: str, missing: tuple[str, ...] = ()) -> list[str]:
    """Fake a runtime with `providers` on a machine without the libraries `missing`; return the loading attempts."""
    tried: list[str] = []

    def preload() -> None:
        print("Failed to load libcublasLt.so.13")
        tried.append("preloaded")

    def load(name: str, mode: int = 0) -> None:
        tried.append(Path(name).name)
        if Path(name).name in missing:
            raise OSError(f"{name}: cannot open shared object file")

    runtime = types.SimpleNamespace(
        get_available_providers=lambda: [*providers], preload_dlls=preload, __file__="/opt/onnxruntime/__init__.py"
    )
    monkeypatch.setattr("dragoman.bundle.runtime.onnxruntime", runtime)
    monkeypatch.setattr(ctypes, "CDLL", load)
    return tried


def session(*providers: str) -> Any:
    return types.SimpleNamespace(get_providers=lambda: [*providers])


def test_cpu_requests_only_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = install(monkeypatch, CUDA, CPU)
    assert session_providers("cpu", CudaOptions()) == [(CPU, {})]
    assert tried == []


@pytest.mark.parametrize("provider", ["auto", "cuda"])
def test_available_cuda_is_requested_with_its_options(
    monkeypatch: pytest.MonkeyPatch, provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = install(monkeypatch, CUDA, CPU)
    options = CudaOptions(
        device=1, memory_limit_bytes=2**30, arena_doubles=True, cudnn_search="exhaustive", graphs=True
    )
    assert session_providers(provider, options) == [
        (
            CUDA,
            {
                "device_id": "1",
                "arena_extend_strategy": "kNextPowerOfTwo",
                "cudnn_conv_algo_search": "EXHAUSTIVE",
                "enable_cuda_graph": "1",
                "gpu_mem_limit": "1073741824",
            },
        ),
        (CPU, {}),
    ]
    assert tried[0] == "preloaded", "from NVIDIA's wheels"
    assert capsys.readouterr().out == ""


def test_cuda_graphs_and_limits_are_off_by_default() -> None:
    assert CudaOptions().for_runtime() == {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "enable_cuda_graph": "0",
    }


def test_auto_falls_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    install(monkeypatch, CPU)
    assert session_providers("auto", CudaOptions()) == [(CPU, {})]
    install(monkeypatch, CUDA, CPU, missing=("libcuda.so.1",))
    with caplog.at_level("INFO"):
        assert session_providers("auto", CudaOptions()) == [(CPU, {})]
    assert "CUDA is unavailable, falling back to CPU: libcuda.so.1: cannot open shared object file" in caplog.text


def test_a_runtime_without_cuda_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CPU)
    with pytest.raises(ProviderError) as caught:
        session_providers("cuda", CudaOptions())
    assert str(caught.value) == (
        "provider cuda cannot run here: this ONNX Runtime has only CPUExecutionProvider; "
        "install dragoman[gpu] in place of dragoman[cpu]"
    )


def test_missing_libraries_are_named_by_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CUDA, CPU, missing=("libcuda.so.1",))
    with pytest.raises(ProviderError, match=r"^provider cuda cannot run here: libcuda\.so\.1: cannot open shared obj"):
        session_providers("cuda", CudaOptions())
    install(monkeypatch, CUDA, CPU, missing=("libcuda.so.1", "libonnxruntime_providers_cuda.so"))
    fault = cuda_fault()
    assert fault is not None
    assert fault.count("cannot open shared object file") == 2


def test_libraries_are_loaded_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = install(monkeypatch, CUDA, CPU)
    assert cuda_fault() is None
    assert tried == [
        "preloaded",
        "libcuda.so.1",
        "libonnxruntime_providers_shared.so",
        "libonnxruntime_providers_cuda.so",
    ]


def test_the_provider_in_use_is_reported_and_cuda_must_run_all() -> None:
    on_cuda, on_cpu = session(CUDA, CPU), session(CPU)
    assert provider_in_use([on_cuda, on_cuda], "cuda") == CUDA
    assert provider_in_use([on_cpu], "cpu") == CPU
    assert provider_in_use([on_cuda, on_cpu], "auto") == CPU
    with pytest.raises(ProviderError, match=r"^provider cuda could not be started; ONNX Runtime fell back to CPUExec"):
        provider_in_use([on_cuda, on_cpu], "cuda")
