import pytest

from dragoman.service.errors import RateLimitedError, UnauthenticatedError
from dragoman.service.rpc.auth import Authenticator, CallerLimits, CallerUsage
from dragoman.service.rpc.tokens import token_digest

TOKEN, OTHER = "a-token-of-the-tests", "another-token-of-them"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def authenticator(limits: CallerLimits, clock: Clock) -> Authenticator:
    digests = (token_digest(TOKEN), token_digest(OTHER))
    return Authenticator(lambda: digests, limits, clock)


def usage(of: Authenticator, token: str = TOKEN) -> CallerUsage:
    found = of.authenticate([("user-agent", "x"), ("authorization", f"Bearer {token}")])
    assert found is not None
    return found


def call(of: Authenticator, token: str = TOKEN) -> None:
    with usage(of, token).call():
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
def test_only_a_known_token_is_accepted(metadata: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(UnauthenticatedError):
        authenticator(CallerLimits(), Clock()).authenticate(metadata)


def test_the_scheme_ignores_case_and_extra_spaces() -> None:
    assert authenticator(CallerLimits(), Clock()).authenticate([("authorization", f"bEARER  {TOKEN}")]) is not None


def test_without_tokens_every_call_is_accepted_uncounted() -> None:
    open_to_all = Authenticator(None, CallerLimits(calls=1))
    assert open_to_all.authenticate([]) is None
    assert not open_to_all.closed


def test_a_rate_allows_a_burst_and_then_gives_a_retry_delay() -> None:
    clock = Clock()
    limited = authenticator(CallerLimits(calls_per_second=4), clock)
    for _ in range(4):
        call(limited)
    with pytest.raises(RateLimitedError, match="this token is limited to 4 calls per second") as caught:
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


def test_concurrent_calls_are_bounded_until_they_end() -> None:
    limited = authenticator(CallerLimits(calls=2), Clock())
    with usage(limited).call(), usage(limited).call():
        with pytest.raises(RateLimitedError, match="this token has 2 of 2 calls running"):
            call(limited)
        call(limited, OTHER)
    with pytest.raises(KeyError), usage(limited).call():
        raise KeyError
    with usage(limited).call(), usage(limited).call():
        pass
