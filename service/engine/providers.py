"""Where ONNX Runtime computes: what is asked of it, what it then does, and why not the one that was wanted.

The runtime falls back to the CPU where CUDA cannot be had, and says so in its log alone. It is imported where it is
needed, so that settings and errors are there without one.
"""

import contextlib
import ctypes
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle.providers import PROVIDERS

log = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"

CUDA_LIBRARIES = ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so")
"""The runtime's own, in this order: the second needs the first."""

Asked = list[tuple[str, dict[str, str]]]


class ProviderError(ValueError):
    """The execution provider that was asked for is not to be had."""


@dataclass(frozen=True)
class CudaOptions:
    """Options of the runtime's CUDA provider."""

    device: int = 0
    memory_limit_bytes: int = 0
    """Most that its arena may take; 0 leaves it all there is."""
    arena_doubles: bool = False
    """Whether the arena grows by powers of two, and else by what is asked for."""
    cudnn_search: str = "heuristic"
    """How cuDNN chooses a convolution's algorithm: heuristic, exhaustive or default."""
    graphs: bool = False
    """Whether what a run launches is recorded and replayed."""

    def for_runtime(self) -> dict[str, str]:
        """The same in the runtime's words."""
        options = {
            "device_id": str(self.device),
            "arena_extend_strategy": "kNextPowerOfTwo" if self.arena_doubles else "kSameAsRequested",
            "cudnn_conv_algo_search": self.cudnn_search.upper(),
            "enable_cuda_graph": str(int(self.graphs)),
        }
        if self.memory_limit_bytes:
            options["gpu_mem_limit"] = str(self.memory_limit_bytes)
        return options


def asked_of_runtime(provider: str, cuda: CudaOptions) -> Asked:
    """The providers of a session, the wanted one first. Raises ProviderError where `provider` is not to be had."""
    on_cpu: Asked = [(PROVIDERS["cpu"], {})]
    if provider == "cpu":
        return on_cpu
    fault = cuda_fault()
    if fault is None:
        return [(PROVIDERS["cuda"], cuda.for_runtime()), *on_cpu]
    if provider == "cuda":
        raise ProviderError(f"provider cuda cannot run here: {fault}")
    if _has_cuda():
        log.warning("the CPU computes, for CUDA cannot: %s", fault)
    return on_cpu


def really_used(sessions: Sequence[Any], provider: str) -> str:
    """The provider that runs all of `sessions`: the CPU where it runs but one of them.

    Raises ProviderError where `provider` is cuda, and that does not run all.
    """
    used = {str(session.get_providers()[0]) for session in sessions}
    if used == {PROVIDERS["cuda"]}:
        return PROVIDERS["cuda"]
    if provider == "cuda":
        others = ", ".join(sorted(used - {PROVIDERS["cuda"]}))
        raise ProviderError(f"provider cuda could not be started; ONNX Runtime fell back to {others}: see its log")
    return PROVIDERS["cpu"]


def cuda_fault() -> str | None:
    """Why CUDA cannot run here, as far as the loader knows; None where it finds all that is needed."""
    from dragoman.bundle.runtime import onnxruntime

    if not _has_cuda():
        available = onnxruntime.get_available_providers()
        return f"this ONNX Runtime has {', '.join(available)} alone; install dragoman[gpu] in place of dragoman[cpu]"
    _preload()
    here = Path(onnxruntime.__file__).parent / "capi"
    faults = [_loading_fault(name) for name in (DRIVER, *(str(here / each) for each in CUDA_LIBRARIES))]
    return "; ".join(fault for fault in faults if fault is not None) or None


def _has_cuda() -> bool:
    """Whether the runtime was built for CUDA."""
    from dragoman.bundle.runtime import onnxruntime

    return PROVIDERS["cuda"] in onnxruntime.get_available_providers()


def _loading_fault(name: str) -> str | None:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return None


def _preload() -> None:
    """Load CUDA's libraries out of NVIDIA's own wheels, where the runtime would not look for them."""
    from dragoman.bundle.runtime import onnxruntime

    # What is missing is printed there; whoever asked for it is told by `cuda_fault`.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()
