from functools import partial
from typing import Any

import pytest

from dragoman.client.values import ServerInfo
from dragoman.client.wire import info_response, server_info
from dragoman.service.rpc.transport import exposure, server_limits
from dragoman.service.settings import ServerSettings

CLEAR = "Warning: texts travel unencrypted, and 0.0.0.0 can be reached from other machines: set TLS."
OPEN = "Warning: anyone who can reach 0.0.0.0 can call this server: set tokens or mutual TLS."
METRICS = (
    "Warning: anyone who can reach the metrics port on 0.0.0.0 can read the metrics without a token: restrict access "
    "to it, or set --metrics-host."
)
TLS: dict[str, Any] = {"tls_certificate": "a", "tls_key": "b"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_loopback_address_needs_no_warning(host: str) -> None:
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
def test_an_exposed_port_warns_of_missing_protection(
    settings: ServerSettings, closed: bool, warnings: tuple[str, ...]
) -> None:
    assert exposure(settings, closed) == warnings


def test_the_largest_limits_fit_the_message() -> None:
    largest = 2**31 - 1
    settings = ServerSettings(
        max_message_bytes=largest,
        max_answer_bytes=largest,
        max_texts=largest,
        max_metadata_bytes=2**20,
        connection_calls=largest,
        connection_age_seconds=largest // 1000 - 1,
        connection_idle_seconds=largest // 1000 - 1,
        max_call_seconds=largest // 1000 - 1,
    )
    limits = server_limits(settings)
    info = ServerInfo((), "", "", 0, limits)
    assert server_info(info_response(info)).limits == limits


@pytest.mark.parametrize(
    "settings",
    [
        partial(ServerSettings, max_texts=2**31),
        partial(ServerSettings, connection_calls=2**31),
        partial(ServerSettings, connection_age_seconds=2**31),
        partial(ServerSettings, max_call_seconds=2**31),
    ],
    ids=lambda settings: next(iter(settings.keywords)),
)
def test_limits_beyond_the_message_are_refused(settings: partial[ServerSettings]) -> None:
    (name,) = settings.keywords
    with pytest.raises(ValueError, match=rf"{name}\n.*less than or equal to"):
        settings()
