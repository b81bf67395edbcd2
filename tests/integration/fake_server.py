"""`python -m tests.integration.fake_server BUNDLE MODE...`: `dragoman serve` with FakeRunner in place of a model.

Modes combine: gated, endless and hanging name the runner; unverified fails the verification, loading never ends
loading, and impatient allows no grace at a stop.
"""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dragoman.bundle.manifest import Bundle
from dragoman.service.engine.runner import RowInput
from dragoman.service.engine.step import Step
from dragoman.service.errors import StartupError
from dragoman.service.loading.loader import LoadedModel
from dragoman.service.serving import serve
from dragoman.service.settings import ServerSettings
from tests.support.fake_runner import END, FakeRunner
from tests.support.harness import PIECES, loaded

GRACE_SECONDS = 60


class GatedRunner(FakeRunner):
    """Each step waits until the file `go` exists."""

    def __init__(self, go: Path) -> None:
        super().__init__()
        self._go = go

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        while not self._go.exists():
            time.sleep(0.005)
        return super().step(rows, only, scored)


class EndlessRunner(FakeRunner):
    """Never ends an output."""

    def __init__(self) -> None:
        super().__init__(endless=range(END + 1, PIECES))

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        time.sleep(0.005)
        return super().step(rows, only, scored)


class HangingRunner(FakeRunner):
    """Never ends a step."""

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        threading.Event().wait()
        return []


def runner_of(folder: Path, modes: set[str]) -> FakeRunner:
    """The runner that `modes` name; that of "gated" waits for the file `go` beside the bundle."""
    if "gated" in modes:
        return GatedRunner(folder.with_name("go"))
    if "endless" in modes:
        return EndlessRunner()
    return HangingRunner() if "hanging" in modes else FakeRunner()


def main(folder: Path, modes: set[str]) -> None:
    runner = runner_of(folder, modes)

    def verify(bundle: Bundle, threads: int) -> None:
        if "unverified" in modes:
            raise StartupError("the bundle failed its verification: golden answers: text 3 differs")

    def load(bundle: Bundle, settings: ServerSettings) -> LoadedModel:
        if "loading" in modes:
            threading.Event().wait()
        return loaded(runner, bundle.manifest)

    grace = 0 if "impatient" in modes else GRACE_SECONDS
    settings = ServerSettings(
        port=0, metrics_port=0, threads_per_lane=1, repetition_tokens=0, grace_seconds=grace, warmup_seconds=0
    )
    try:
        serve(settings, [folder], load, verify)
    except StartupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]))
