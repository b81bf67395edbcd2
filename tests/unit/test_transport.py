import pytest

from dragoman.service.settings import ServerSettings
from dragoman.service.transport import exposure

CLEAR = "Warning: texts travel in the clear, for 0.0.0.0 is not this machine alone: set TLS."
OPEN = "Warning: whoever reaches 0.0.0.0 can call this server: set tokens or mutual TLS."


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_who_listens_to_this_machine_alone_is_not_warned(host: str) -> None:
    assert exposure(ServerSettings(host=host), closed=False) == ()


@pytest.mark.parametrize(
    ("settings", "closed", "warnings"),
    [
        (ServerSettings(host="0.0.0.0"), False, (CLEAR, OPEN)),
        (ServerSettings(host="0.0.0.0"), True, (CLEAR,)),
        (ServerSettings(host="0.0.0.0", tls_certificate="a", tls_key="b"), False, (OPEN,)),
        (ServerSettings(host="0.0.0.0", tls_certificate="a", tls_key="b"), True, ()),
        (ServerSettings(host="0.0.0.0", tls_certificate="a", tls_key="b", tls_client_ca="c"), False, ()),
    ],
)
def test_who_listens_beyond_it_is_told_what_is_missing(
    settings: ServerSettings, closed: bool, warnings: tuple[str, ...]
) -> None:
    assert exposure(settings, closed) == warnings
