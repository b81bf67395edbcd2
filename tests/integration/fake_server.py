"""`python -m tests.integration.fake_server BUNDLE WAY...`: `dragoman serve` with FakeRunner in place of a model.

Each WAY makes it behave in one more way that a test wants to see.
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
from tests.support.fake_runner import FakeRunner
from tests.support.harness import loaded

STEP_SECONDS = 0.05


class SlowRunner(FakeRunner):
    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        time.sleep(STEP_SECONDS)
        return super().step(rows, only, scored)


class HangingRunner(FakeRunner):
    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        threading.Event().wait()
        return []


RUNNERS = {"slow": SlowRunner, "hanging": HangingRunner}


def main(folder: Path, ways: set[str]) -> None:
    runner = next((RUNNERS[way] for way in ways if way in RUNNERS), FakeRunner)()

    def verify(bundle: Bundle, threads: int) -> None:
        if "unverified" in ways:
            raise StartupError("the bundle failed its verification: golden answers: text 3 differs")

    def load(bundle: Bundle, settings: ServerSettings) -> LoadedModel:
        if "loading" in ways:
            threading.Event().wait()
        return loaded(runner, bundle.manifest)

    grace = 0 if "impatient" in ways else 20
    settings = ServerSettings(
        port=0, metrics_port=0, threads_per_lane=1, repetition_tokens=0, grace_seconds=grace, warmup_seconds=0
    )
    try:
        serve(settings, [folder], load, verify)
    except StartupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]))
