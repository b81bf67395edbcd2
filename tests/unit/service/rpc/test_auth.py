import pytest

from dragoman.service.errors import RateLimitedError, UnauthenticatedError
from dragoman.service.rpc.auth import Authenticator, CallerLimits, CallerUsage
from dragoman.service.rpc.tokens import token_digest

TOKEN, OTHER = "a-token-of-the-tests", "another-token-of-them"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def guard(limits: CallerLimits, clock: Clock) -> Authenticator:
    digests = (token_digest(TOKEN), token_digest(OTHER))
    return Authenticator(lambda: digests, limits, clock)


def account(of: Authenticator, token: str = TOKEN) -> CallerUsage:
    found = of.account([("user-agent", "x"), ("authorization", f"Bearer {token}")])
    assert found is not None
    return found


def call(of: Authenticator, token: str = TOKEN) -> None:
    with account(of, token).call():
        pass


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer ")],
        [("authorization", TOKEN)],
        [("authorization", f"Basic {TOKEN}")],
        [("authorization", f"Bearer {TOKEN}x")],
        [("authorization", f"Bearer {TOKEN[:-1]}")],
        [("authorization", "Bearer \ud800")],
        [("authorization", f"Bearer {TOKEN}".encode())],
        [("x-authorization", f"Bearer {TOKEN}")],
    ],
)
def test_nothing_but_a_known_token_opens(metadata: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(UnauthenticatedError):
        guard(CallerLimits(), Clock()).account(metadata)


def test_the_scheme_may_be_written_as_one_likes() -> None:
    assert guard(CallerLimits(), Clock()).account([("authorization", f"bEARER  {TOKEN}")]) is not None


def test_without_tokens_everybody_may_call_and_nobody_is_counted() -> None:
    open_to_all = Authenticator(None, CallerLimits(calls=1))
    assert open_to_all.account([]) is None
    assert not open_to_all.closed


def test_a_rate_lets_a_second_s_calls_through_at_once_and_then_says_when_to_come_again() -> None:
    clock = Clock()
    limited = guard(CallerLimits(calls_per_second=4), clock)
    for _ in range(4):
        call(limited)
    with pytest.raises(RateLimitedError, match="this token may make 4 calls a second") as caught:
        call(limited)
    assert caught.value.retry_after_seconds == pytest.approx(0.25)
    call(limited, OTHER)
    clock.now += caught.value.retry_after_seconds
    call(limited)
    clock.now += 1000
    for _ in range(4):
        call(limited)
    with pytest.raises(RateLimitedError):
        call(limited)


def test_calls_at_once_are_bounded_and_free_again_when_they_end_in_any_way() -> None:
    limited = guard(CallerLimits(calls=2), Clock())
    with account(limited).call(), account(limited).call():
        with pytest.raises(RateLimitedError, match="this token has 2 of 2 calls running"):
            call(limited)
        call(limited, OTHER)
    with pytest.raises(KeyError), account(limited).call():
        raise KeyError
    with account(limited).call(), account(limited).call():
        pass
