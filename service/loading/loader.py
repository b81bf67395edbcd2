"""From a bundle on disk to a model that is warm: all that must succeed before a server says that it is ready."""

import logging
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.bundle.manifest import (
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    Bundle,
    BundleError,
    Manifest,
    open_bundle,
)
from dragoman.bundle.tokenizers import Tokenizer, open_tokenizer
from dragoman.service.engine.memory_budget import MemoryBudget
from dragoman.service.engine.providers import ProviderError, cuda_fault
from dragoman.service.engine.runner import Runner
from dragoman.service.errors import StartupError
from dragoman.service.loading.warmup import warm_up
from dragoman.service.settings import ServerSettings
from dragoman.service.system.process import give_back_memory, resident_memory_bytes
from dragoman.service.system.resident import anonymous_bytes

if TYPE_CHECKING:
    from dragoman.bundle.providers import Provider
    from dragoman.bundle.verify import Check

log = logging.getLogger(__name__)

INSTALL_RUNTIME = "pip install 'dragoman[cpu]', or 'dragoman[gpu]' for NVIDIA GPUs"


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, warm, that no engine drives yet."""

    manifest: Manifest
    tokenizer: Tokenizer
    runners: tuple[Runner, ...]
    """One a lane."""
    provider: str
    """The execution provider really in use."""
    runtime_version: str
    load_seconds: float
    warmup_seconds: float
    weights_file: str = ""
    """Where its weights are mapped from."""
    held_bytes: int = 0
    """How much more the allocators had once it was loaded, its caches apart."""


Stamp = tuple[tuple[str, int, int, int], ...]
"""A folder's files at one moment: path, inode, size and time of the last change of each."""


@dataclass(frozen=True)
class Found:
    """A bundle whose files have been checked, and what they looked like before."""

    bundle: Bundle
    stamp: Stamp


@dataclass(frozen=True)
class Loader:
    """From a folder to a model, the same way when a server starts as when a bundle is replaced."""

    settings: ServerSettings
    read: Callable[[Bundle, ServerSettings], LoadedModel]
    """From the files to a warm model, as `load_model`."""
    verify: Callable[[Bundle, int], object]
    """Raises StartupError where answers differ, as `verify_model`."""

    def find(self, folder: Path) -> Found:
        """The bundle that lies in `folder` now. Raises StartupError that names the file at fault."""
        stamp = stamp_of(folder)
        return Found(read_bundle(folder), stamp)

    def load(self, found: Found, say: Callable[[str], None], others: Callable[[], int] = lambda: 0) -> LoadedModel:
        """The model, verified and warm; `say` is told what is being done. Raises StartupError.

        `others` counts what comes and goes with the models that run meanwhile.
        """
        bundle = found.bundle
        give_back_memory()
        before = anonymous_bytes() - others()
        if self.settings.verify:
            say(f"Verifying {bundle.manifest.name} on this machine ...")
            self.verify(bundle, self.settings.compute_threads)
        say(f"Loading {bundle.manifest.name} ...")
        model = self.read(bundle, self.settings)
        if stamp_of(bundle.folder) != found.stamp:
            # What was checked and what was read may be of two versions.
            raise StartupError(f"{bundle.folder} changed while it was loaded")
        held = [runner.memory() for runner in model.runners]
        passing = held[0].working + sum(each.cache_resident for each in held) + others()
        return replace(model, held_bytes=max(0, anonymous_bytes() - passing - before))


def stamp_of(folder: Path) -> Stamp:
    """What the files of `folder` look like now; nothing where it is not there."""
    try:
        return tuple(
            (str(path.relative_to(folder)), about.st_ino, about.st_size, about.st_mtime_ns)
            for path in sorted(folder.rglob("*"))
            if stat.S_ISREG((about := path.stat()).st_mode)
        )
    except OSError:
        # A file went away between two looks.
        return ()


def find_bundles(folders: Sequence[Path]) -> list[Path]:
    """The bundles that `folders` are, or hold; one that holds none is given back, for its fault to be told."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob(f"[!.]*/{MANIFEST_FILE}"))
        found += [folder] if (folder / MANIFEST_FILE).is_file() or not inner else inner
    return found


def read_bundle(folder: Path) -> Bundle:
    """The bundle in `folder`, its files checked. Raises StartupError that names the file at fault."""
    try:
        return open_bundle(folder)
    except (BundleError, OSError) as error:
        raise StartupError(f"bundle refused: {error}") from error


def check_runtime() -> str:
    """The version of the ONNX Runtime that is installed. Raises StartupError where there is none, or two at once."""
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
    """Raise StartupError that says why, where `provider` is cuda, and that cannot run here."""
    if provider != "cuda":
        return
    check_runtime()
    fault = cuda_fault()
    if fault is not None:
        raise StartupError(f"provider cuda cannot run here: {fault}")


def verify_model(
    bundle: Bundle, threads: int, provider: "Provider" = "cpu", progress: Callable[[str], None] | None = None
) -> "tuple[Check, ...]":
    """Replay the bundle's golden answers on this machine, and return what holds.

    `progress` is told what is being checked. Raises StartupError that names the check that failed.
    """
    check_runtime()
    from dragoman.bundle.verify import VerificationError, verify_bundle

    try:
        return verify_bundle(bundle, threads=threads, provider=provider, progress=progress)
    except VerificationError as error:
        raise StartupError(f"the bundle failed its verification: {error}") from error
    except Exception as error:
        raise StartupError(f"the bundle could not be verified: {_one_line(error)}") from error


def load_model(bundle: Bundle, settings: ServerSettings) -> LoadedModel:
    """Read `bundle` into memory and warm it up. Raises StartupError."""
    runtime_version = check_runtime()
    from dragoman.service.engine.ort_runner import OrtRunner

    started = time.monotonic()
    try:
        tokenizer = open_tokenizer(bundle.path(TOKENIZER_FOLDER))
        runner = OrtRunner(
            bundle,
            provider=settings.provider,
            threads=settings.session_threads,
            max_rows=settings.max_rows,
            cuda=settings.cuda,
        )
        runners = (runner, *(runner.another() for _ in range(settings.lanes - 1)))
        loaded = time.monotonic()
        sources = [text.source_ids for text in bundle.golden()]
        for each in runners:
            seconds = settings.warmup_seconds / len(runners)
            if seconds and not warm_up(
                each, sources, bundle.manifest, settings.limits, seconds, budget=_left(settings, each)
            ):
                log.info("%s was not warmed up for every size; what is left is run when it comes", bundle.manifest.name)
    except ProviderError as error:
        raise StartupError(str(error)) from error
    except Exception as error:
        raise StartupError(f"the model could not be loaded: {_one_line(error)}") from error
    return LoadedModel(
        manifest=bundle.manifest,
        tokenizer=tokenizer,
        runners=runners,
        provider=runner.provider,
        runtime_version=runtime_version,
        load_seconds=loaded - started,
        warmup_seconds=time.monotonic() - loaded,
        weights_file=str(bundle.path(WEIGHTS_FILE).resolve()),
    )


def _left(settings: ServerSettings, runner: Runner) -> MemoryBudget | None:
    """What a memory budget leaves for warming up."""
    if not settings.memory_budget_bytes:
        return None
    left = settings.memory_budget_bytes - resident_memory_bytes()
    return MemoryBudget(left, runner.costs(), runner.most_working)


def as_configured(wanted: str, provider: str, has_device: bool) -> bool:
    """Whether the setting `wanted` is met by `provider`, an execution provider's name, with a GPU or without."""
    if wanted == "auto" and not has_device:
        return True
    return provider == f"{'CPU' if wanted == 'cpu' else 'CUDA'}ExecutionProvider"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
