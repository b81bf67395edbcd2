from typing import Any

import pytest

from dragoman.service.settings import ServerSettings
from dragoman.service.transport import exposure

CLEAR = "Warning: texts travel in the clear, for 0.0.0.0 is not this machine alone: set TLS."
OPEN = "Warning: whoever reaches 0.0.0.0 can call this server: set tokens or mutual TLS."
METRICS = (
    "Warning: whoever reaches the metrics port of 0.0.0.0 can read the metrics, without a token: keep others from it, "
    "or set --metrics-host."
)
TLS: dict[str, Any] = {"tls_certificate": "a", "tls_key": "b"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_who_listens_to_this_machine_alone_is_not_warned(host: str) -> None:
    assert exposure(ServerSettings(host=host), closed=False) == ()


@pytest.mark.parametrize(
    ("settings", "closed", "warnings"),
    [
        (ServerSettings(host="0.0.0.0"), False, (CLEAR, OPEN, METRICS)),
        (ServerSettings(host="0.0.0.0"), True, (CLEAR, METRICS)),
        (ServerSettings(host="0.0.0.0", **TLS), False, (OPEN, METRICS)),
        (ServerSettings(host="0.0.0.0", **TLS), True, (METRICS,)),
        (ServerSettings(host="0.0.0.0", **TLS, tls_client_ca="c"), False, (METRICS,)),
        (ServerSettings(host="0.0.0.0", metrics_host="127.0.0.1"), False, (CLEAR, OPEN)),
        (ServerSettings(metrics_host="0.0.0.0"), False, (METRICS,)),
    ],
)
def test_who_listens_beyond_it_is_told_what_is_missing(
    settings: ServerSettings, closed: bool, warnings: tuple[str, ...]
) -> None:
    assert exposure(settings, closed) == warnings
