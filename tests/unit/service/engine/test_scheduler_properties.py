"""Random schedules, and the scheduler's independence of arrays."""

import math
import random
import subprocess
import sys
from collections.abc import Sequence as Row
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.service.engine.sequence import Sequence
from dragoman.service.engine.step import Step
from dragoman.service.errors import DeadlineUnreachableError
from tests.unit.service.engine.schedules import END, WORD, Scheduled, apply, limits, sequence


@pytest.mark.parametrize("seed", range(20))
def test_rows_agree_with_the_runner(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = Scheduled(limits(rows=6, tokens=80, encode_tokens=20, queue_sequences=30))
    slots: list[Sequence | None] = [None] * 6
    submitted: list[Sequence] = []
    gone: list[Sequence] = []
    for now in range(300):
        if rng.random() < 0.4 and now < 250:
            batch = [sequence(rng.randint(1, 6), rng.randint(1, 8), now + rng.choice((3, 1000))) for _ in range(3)]
            with suppress(DeadlineUnreachableError):
                scheduler.queue.submit(batch, now)
                submitted += batch
        if submitted and rng.random() < 0.1:
            rng.choice(submitted).cancel()
        gone += step(scheduler, slots, rng, now)
        assert scheduler.queue.tokens == sum(
            each.cost for each in submitted if not each.times.admitted and not each.finish
        )
        assert slots[: len(scheduler.rows)] == list(scheduler.rows)
        assert sum(each.cost for each in scheduler.rows) <= 80
    assert sorted(map(id, gone)) == sorted(map(id, submitted)), "each leaves exactly once"
    assert scheduler.idle


def step(scheduler: Scheduled, slots: list[Sequence | None], rng: random.Random, now: int) -> Row[Sequence]:
    """Make one iteration of a lane, and return the sequences that left."""
    expired = scheduler.drop_expired(now)
    apply(expired, slots)
    admission = scheduler.admit(now + 0.5)
    slots[admission.first_row : admission.first_row + len(admission.insert)] = admission.insert
    tokens = [Step(rng.choice((WORD, WORD, END)), rng.choice((-1.0, -1.0, -1.0, math.nan))) for _ in scheduler.rows]
    removal = scheduler.update(tokens, now)
    apply(removal, slots)
    return (*expired.gone, *admission.gone, *removal.gone)


def test_the_scheduler_needs_no_array_library() -> None:
    blocked = "import sys; sys.modules['numpy'] = sys.modules['onnxruntime'] = None; import pytest; "
    folder = Path(__file__).parent
    files = [*map(str, folder.glob("test_scheduler_*.py")), str(folder / "test_queue.py")]
    arguments = ["-q", "-p", "no:cacheprovider", "--noconftest", *files, "-k", "not array_library"]
    run = subprocess.run(
        [sys.executable, "-c", f"{blocked} sys.exit(pytest.main({arguments}))"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
