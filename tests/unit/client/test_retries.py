import grpc
import pytest

from dragoman.client.errors import (
    ClientError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    ServerError,
    TimedOutError,
    UnauthenticatedError,
    UnavailableError,
)
from dragoman.client.retries import Attempts, Retries, RetryBudget, may_pass

GONE = UnavailableError(grpc.StatusCode.UNAVAILABLE, "gone")
FULL = OverloadedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_seconds=1.0)
TOO_LARGE = OverloadedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(
    retries: Retries | None, seconds: float = 60, clock: Clock | None = None, chance: float = 0.0, budget: int = 10
) -> Attempts:
    return Attempts(retries, RetryBudget(budget), seconds, clock or Clock(), lambda: chance)


def waits(of: Attempts, error: ClientError, clock: Clock) -> list[float]:
    """All delays until the call fails for good."""
    found = []
    while (wait := of.delay_after(error)) is not None:
        found.append(wait)
        clock.now += wait
    return found


def test_delays_double_up_to_a_second_until_time_is_up() -> None:
    clock = Clock()
    found = waits(attempts(Retries(seconds=5), clock=clock), GONE, clock)
    assert found == pytest.approx([0.1, 0.2, 0.4, 0.8, 1, 1, 1])


def test_jitter_shortens_a_delay_by_at_most_half() -> None:
    assert attempts(Retries(), chance=1.0).delay_after(GONE) == pytest.approx(0.05)


def test_a_delay_is_never_shorter_than_the_server_asks() -> None:
    assert attempts(Retries(), chance=1.0).delay_after(FULL) == pytest.approx(1.05)


def test_no_retry_exceeds_the_time_limit_of_the_call() -> None:
    clock = Clock()
    one = attempts(Retries(), seconds=1.5, clock=clock)
    assert one.seconds_left == 1.5
    assert waits(one, GONE, clock) == pytest.approx([0.1, 0.2, 0.4])
    assert one.seconds_left == pytest.approx(0.8)
    clock.now += 5
    assert one.seconds_left == 0


def test_overload_retries_share_a_budget_that_successes_refill() -> None:
    budget = RetryBudget(2)

    def again() -> bool:
        return Attempts(Retries(), budget, 60, Clock()).delay_after(FULL) is not None

    assert [again() for _ in range(3)] == [True, True, False]
    # A missing server is not overloaded.
    assert Attempts(Retries(), budget, 60, Clock()).delay_after(GONE) is not None
    for _ in range(11):
        budget.earn()
    assert [again() for _ in range(2)] == [True, False]


def test_the_budget_never_exceeds_its_size() -> None:
    budget = RetryBudget(2)
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "kind", [InvalidArgumentError, NotFoundError, ServerError, TimedOutError, UnauthenticatedError]
)
def test_permanent_errors_are_not_retried(kind: type[ClientError]) -> None:
    assert not may_pass(kind(grpc.StatusCode.UNKNOWN, "no"))
    assert not may_pass(TOO_LARGE)


def test_without_retries_there_is_one_attempt() -> None:
    assert attempts(None).delay_after(GONE) is None
