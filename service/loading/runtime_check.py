"""ONNX Runtime and its execution providers: whether they are installed and usable on this machine."""

from importlib.metadata import PackageNotFoundError, version

from dragoman.service.engine.providers import cuda_fault
from dragoman.service.errors import StartupError

INSTALL_RUNTIME = "pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs, in a clone of dragoman"


def check_runtime() -> str:
    """The version of the installed ONNX Runtime. Raises StartupError if there is none, or two at once."""
    found = {name: _version_of(name) for name in ("onnxruntime", "onnxruntime-gpu")}
    if all(found.values()):
        raise StartupError(
            "onnxruntime and onnxruntime-gpu are both installed, in one folder: uninstall both, then " + INSTALL_RUNTIME
        )
    try:
        from dragoman.bundle.runtime import onnxruntime
    except ImportError as error:
        raise StartupError(f"ONNX Runtime is not installed: {INSTALL_RUNTIME}") from error
    return str(onnxruntime.__version__)


def check_provider(provider: str) -> None:
    """Raise StartupError with the reason if `provider` is cuda and CUDA cannot run here."""
    if provider != "cuda":
        return
    check_runtime()
    fault = cuda_fault()
    if fault is not None:
        raise StartupError(f"provider cuda cannot run here: {fault}")


def as_configured(wanted: str, provider: str, has_device: bool) -> bool:
    """Whether the execution provider `provider` meets the setting `wanted`; `has_device`: there is a GPU."""
    if wanted == "auto" and not has_device:
        return True
    return provider == f"{'CPU' if wanted == 'cpu' else 'CUDA'}ExecutionProvider"


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
