import grpc

from dragoman.service.door import REMEMBERED_SECONDS, Door
from dragoman.service.errors import HopelessError


class Engine:
    """One that needs so many seconds for what comes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.needed = 3.0
        self.looks = 0

    def look(self, seconds_left: float | None) -> HopelessError | None:
        self.looks += 1
        return HopelessError("late", 1.0) if seconds_left is not None and seconds_left < self.needed else None

    def door(self) -> Door:
        return Door(self.look, lambda: self.now)


def test_what_is_hopeless_for_one_is_so_for_a_moment_for_all_that_have_no_more_time() -> None:
    engine = Engine()
    door = engine.door()
    first = door.refusal(2.0)
    assert first is not None
    assert first.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [door.refusal(left) for left in (2.0, 1.0, 0.0)] == [first] * 3
    assert engine.looks == 1


def test_who_has_more_time_is_asked_for_anew() -> None:
    engine = Engine()
    door = engine.door()
    door.refusal(2.0)
    assert door.refusal(4.0) is None
    assert door.refusal(2.5) is not None
    assert engine.looks == 3


def test_after_a_moment_everybody_is_asked_for_anew() -> None:
    engine = Engine()
    door = engine.door()
    door.refusal(2.0)
    engine.now, engine.needed = REMEMBERED_SECONDS, 1.0
    assert door.refusal(2.0) is None


def test_who_has_no_deadline_is_never_late() -> None:
    engine = Engine()
    assert engine.door().refusal(None) is None
