"""ONNX Runtime's execution providers: which are requested, which run, and why CUDA is unavailable.

The runtime falls back to the CPU if CUDA is unavailable, and only its log says so. It is imported inside functions, so
that settings and errors work without it.
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
"""The runtime's own libraries, in loading order: the second needs the first."""

Providers = list[tuple[str, dict[str, str]]]
"""Names and options, in order of preference."""


class ProviderError(ValueError):
    """The requested execution provider is unavailable."""


@dataclass(frozen=True)
class CudaOptions:
    """Options of the runtime's CUDA provider."""

    device: int = 0
    memory_limit_bytes: int = 0
    """Maximum size of its arena; 0 sets no limit."""
    arena_doubles: bool = False
    """Whether the arena grows to the next power of two, or else by the requested size."""
    cudnn_search: str = "heuristic"
    """cuDNN's search for a convolution's algorithm: heuristic, exhaustive or default."""
    graphs: bool = False
    """Whether the kernel launches of a run are recorded and replayed."""

    def for_runtime(self) -> dict[str, str]:
        """Return the options under the runtime's names."""
        options = {
            "device_id": str(self.device),
            "arena_extend_strategy": "kNextPowerOfTwo" if self.arena_doubles else "kSameAsRequested",
            "cudnn_conv_algo_search": self.cudnn_search.upper(),
            "enable_cuda_graph": str(int(self.graphs)),
        }
        if self.memory_limit_bytes:
            options["gpu_mem_limit"] = str(self.memory_limit_bytes)
        return options


def session_providers(provider: str, cuda: CudaOptions) -> Providers:
    """Return the providers of a session, in order of preference.

    `provider` is "cpu", "cuda", or "auto": cuda if available, else cpu. Raises ProviderError if it is unavailable.
    """
    on_cpu: Providers = [(PROVIDERS["cpu"], {})]
    if provider == "cpu":
        return on_cpu
    fault = cuda_fault()
    if fault is None:
        return [(PROVIDERS["cuda"], cuda.for_runtime()), *on_cpu]
    if provider == "cuda":
        raise ProviderError(f"provider cuda cannot run here: {fault}")
    if _has_cuda():
        log.warning("CUDA is unavailable, falling back to CPU: %s", fault)
    return on_cpu


def provider_in_use(sessions: Sequence[Any], provider: str) -> str:
    """Return the provider that runs all of `sessions`; the CPU if it runs any of them.

    Raises ProviderError if `provider` is cuda and does not run all of them.
    """
    used = {str(session.get_providers()[0]) for session in sessions}
    if used == {PROVIDERS["cuda"]}:
        return PROVIDERS["cuda"]
    if provider == "cuda":
        others = ", ".join(sorted(used - {PROVIDERS["cuda"]}))
        raise ProviderError(f"provider cuda could not be started; ONNX Runtime fell back to {others}: see its log")
    return PROVIDERS["cpu"]


def cuda_fault() -> str | None:
    """Return why CUDA cannot run here, as far as the loader knows; None if it finds all libraries."""
    from dragoman.bundle.runtime import onnxruntime

    if not _has_cuda():
        available = onnxruntime.get_available_providers()
        return f"this ONNX Runtime has only {', '.join(available)}; install dragoman[gpu] in place of dragoman[cpu]"
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
    """Load CUDA's libraries from NVIDIA's wheels, where the runtime itself does not search."""
    from dragoman.bundle.runtime import onnxruntime

    # It prints missing libraries; `cuda_fault` reports them instead.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()
