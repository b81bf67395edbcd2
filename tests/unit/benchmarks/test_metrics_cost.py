import time

from benchmarks.speed.metrics_cost import Timed
from dragoman.service.engine.offline import Silent

WORK_SECONDS = 0.02


class Busy(Silent):
    def stepped(self, rows: int, seconds: float) -> None:
        end = time.thread_time() + WORK_SECONDS
        while time.thread_time() < end:
            pass


def test_timed_measures_the_processor_time_of_an_observer() -> None:
    timed = Timed(Busy())
    timed.encoded(1, 2, 3)
    assert timed.seconds < WORK_SECONDS
    timed.stepped(1, 0.5)
    assert timed.seconds >= WORK_SECONDS
