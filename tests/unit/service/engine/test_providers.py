"""What is asked of ONNX Runtime, and what is said where CUDA cannot be had."""

import ctypes
import types
from pathlib import Path
from typing import Any

import pytest

from dragoman.service.engine.providers import CudaOptions, ProviderError, asked_of_runtime, cuda_fault, really_used

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def install(monkeypatch: pytest.MonkeyPatch, *providers: str, missing: tuple[str, ...] = ()) -> list[str]:
    """A runtime with `providers`, on a machine that lacks the libraries `missing`; gives those that are loaded."""
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


def test_the_cpu_is_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = install(monkeypatch, CUDA, CPU)
    assert asked_of_runtime("cpu", CudaOptions()) == [(CPU, {})]
    assert tried == []


@pytest.mark.parametrize("provider", ["auto", "cuda"])
def test_cuda_is_asked_for_with_its_options_where_it_is_there(
    monkeypatch: pytest.MonkeyPatch, provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = install(monkeypatch, CUDA, CPU)
    options = CudaOptions(
        device=1, memory_limit_bytes=2**30, arena_doubles=True, cudnn_search="exhaustive", graphs=True
    )
    assert asked_of_runtime(provider, options) == [
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
    assert tried[0] == "preloaded", "out of NVIDIA's own wheels"
    assert capsys.readouterr().out == ""


def test_graphs_and_limits_are_off_unless_asked_for() -> None:
    assert CudaOptions().for_runtime() == {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "enable_cuda_graph": "0",
    }


def test_auto_goes_without_cuda_where_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, CPU)
    assert asked_of_runtime("auto", CudaOptions()) == [(CPU, {})]
    install(monkeypatch, CUDA, CPU, missing=("libcuda.so.1",))
    with caplog.at_level("INFO"):
        assert asked_of_runtime("auto", CudaOptions()) == [(CPU, {})]
    assert "the CPU computes, for CUDA cannot: libcuda.so.1: cannot open shared object file" in caplog.text


def test_a_runtime_without_cuda_is_told_of_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CPU)
    with pytest.raises(ProviderError) as caught:
        asked_of_runtime("cuda", CudaOptions())
    assert str(caught.value) == (
        "provider cuda cannot run here: this ONNX Runtime has CPUExecutionProvider alone; "
        "install dragoman[gpu] in place of dragoman[cpu]"
    )


def test_the_library_that_is_missing_is_named_as_the_loader_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CUDA, CPU, missing=("libcuda.so.1",))
    with pytest.raises(ProviderError, match=r"^provider cuda cannot run here: libcuda\.so\.1: cannot open shared obj"):
        asked_of_runtime("cuda", CudaOptions())
    install(monkeypatch, CUDA, CPU, missing=("libcuda.so.1", "libonnxruntime_providers_cuda.so"))
    fault = cuda_fault()
    assert fault is not None
    assert fault.count("cannot open shared object file") == 2


def test_all_that_is_needed_is_looked_for_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = install(monkeypatch, CUDA, CPU)
    assert cuda_fault() is None
    assert tried == [
        "preloaded",
        "libcuda.so.1",
        "libonnxruntime_providers_shared.so",
        "libonnxruntime_providers_cuda.so",
    ]


def test_what_runs_is_told_and_cuda_must_be_what_runs() -> None:
    on_cuda, on_cpu = session(CUDA, CPU), session(CPU)
    assert really_used([on_cuda, on_cuda], "cuda") == CUDA
    assert really_used([on_cpu], "cpu") == CPU
    assert really_used([on_cuda, on_cpu], "auto") == CPU
    with pytest.raises(ProviderError, match=r"^provider cuda could not be started; ONNX Runtime fell back to CPUExec"):
        really_used([on_cuda, on_cpu], "cuda")
