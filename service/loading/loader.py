"""From a bundle on disk to a warm model: every step that must succeed before a server reports ready."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.bundle.manifest import TOKENIZER_FOLDER, WEIGHTS_FILE, Bundle, Manifest
from dragoman.bundle.tokenizers import Tokenizer, open_tokenizer
from dragoman.service.engine.memory_budget import MemoryBudget
from dragoman.service.engine.providers import ProviderError
from dragoman.service.engine.runner import Runner
from dragoman.service.errors import StartupError
from dragoman.service.loading.bundles import FoundBundle, find_bundle
from dragoman.service.loading.runtime_check import check_runtime
from dragoman.service.loading.warmup import warm_up
from dragoman.service.settings import ServerSettings
from dragoman.service.system.file_watch import folder_stamp
from dragoman.service.system.resident import anonymous_bytes, resident_memory_bytes
from dragoman.service.system.tuning import trim_malloc

if TYPE_CHECKING:
    from dragoman.bundle.providers import Provider
    from dragoman.bundle.verify import Check
    from dragoman.service.engine.ort_runner import OrtRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A warm model in memory, not yet driven by an engine."""

    manifest: Manifest
    tokenizer: Tokenizer
    runners: tuple[Runner, ...]
    """One per lane."""
    provider: str
    """The execution provider in use, which may not be the one in the settings."""
    runtime_version: str
    load_seconds: float
    warmup_seconds: float
    weights_file: str = ""
    """The file that the weights are mapped from."""
    held_bytes: int = 0
    """Growth of anonymous memory by loading, without the model's caches and working memory."""


@dataclass(frozen=True)
class Loader:
    """From a folder to a model, in the same way at startup and at a replacement."""

    settings: ServerSettings
    read: Callable[[Bundle, ServerSettings], LoadedModel]
    """From the files to a warm model, as `load_model`."""
    verify: Callable[[Bundle, int], object]
    """Raises StartupError if an answer differs, as `verify_model`."""

    def find(self, folder: Path) -> FoundBundle:
        """The bundle now in `folder`. Raises StartupError that names the file at fault."""
        return find_bundle(folder)

    def load(
        self, found: FoundBundle, say: Callable[[str], None], others: Callable[[], int] = lambda: 0
    ) -> LoadedModel:
        """The verified, warm model; each step is announced by `say`. Raises StartupError.

        `others` gives the bytes that running models hold now and may release meanwhile.
        """
        bundle = found.bundle
        trim_malloc()
        before = anonymous_bytes() - others()
        if self.settings.verify:
            say(f"Verifying {bundle.manifest.name} on this machine ...")
            self.verify(bundle, self.settings.compute_threads)
        say(f"Loading {bundle.manifest.name} ...")
        model = self.read(bundle, self.settings)
        if folder_stamp(bundle.folder) != found.stamp:
            # The files checked and the files read may be of two versions.
            raise StartupError(f"{bundle.folder} changed while it was loaded")
        held = [runner.memory() for runner in model.runners]
        passing = held[0].working + sum(each.cache_resident for each in held) + others()
        return replace(model, held_bytes=max(0, anonymous_bytes() - passing - before))


def verify_model(
    bundle: Bundle, threads: int, provider: "Provider" = "cpu", progress: Callable[[str], None] | None = None
) -> "tuple[Check, ...]":
    """Replay the bundle's golden answers on this machine, and return the checks that passed.

    `progress` is called with the name of each check. Raises StartupError that names the check that failed.
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
    started = time.monotonic()
    try:
        tokenizer = open_tokenizer(bundle.path(TOKENIZER_FOLDER))
        runners = _open_runners(bundle, settings)
        loaded = time.monotonic()
        _warm_up(runners, bundle, settings)
    except ProviderError as error:
        raise StartupError(str(error)) from error
    except Exception as error:
        raise StartupError(f"the model could not be loaded: {_one_line(error)}") from error
    return LoadedModel(
        manifest=bundle.manifest,
        tokenizer=tokenizer,
        runners=runners,
        provider=runners[0].provider,
        runtime_version=runtime_version,
        load_seconds=loaded - started,
        warmup_seconds=time.monotonic() - loaded,
        weights_file=str(bundle.path(WEIGHTS_FILE).resolve()),
    )


def _open_runners(bundle: Bundle, settings: ServerSettings) -> "tuple[OrtRunner, ...]":
    """One runner per lane; they share the sessions of the first."""
    from dragoman.service.engine.ort_runner import OrtRunner

    first = OrtRunner(
        bundle,
        provider=settings.provider,
        threads=settings.session_threads,
        max_rows=settings.max_rows,
        cuda=settings.cuda,
    )
    return (first, *(first.another() for _ in range(settings.lanes - 1)))


def _warm_up(runners: tuple[Runner, ...], bundle: Bundle, settings: ServerSettings) -> None:
    """Warm up each runner for an equal share of `settings.warmup_seconds`; 0 skips warm-up."""
    sources = [text.source_ids for text in bundle.golden()]
    seconds = settings.warmup_seconds / len(runners)
    if not seconds:
        return
    for runner in runners:
        budget = _remaining_budget(settings, runner)
        if not warm_up(runner, sources, bundle.manifest, settings.limits, seconds, budget=budget):
            log.info(
                "%s: warm-up ran out of time or memory; the remaining shapes run on first use", bundle.manifest.name
            )


def _remaining_budget(settings: ServerSettings, runner: Runner) -> MemoryBudget | None:
    """The part of the memory budget that warm-up may use; None without a budget."""
    if not settings.memory_budget_bytes:
        return None
    left = settings.memory_budget_bytes - resident_memory_bytes()
    return MemoryBudget(left, runner.costs(), runner.most_working)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
