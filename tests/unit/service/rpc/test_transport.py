from functools import partial
from typing import Any

import pytest

from dragoman.client.values import ServerInfo
from dragoman.client.wire import info_response, server_info
from dragoman.service.rpc.transport import exposure, server_limits
from dragoman.service.settings import ServerSettings

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


def test_the_largest_bounds_can_be_told() -> None:
    most = 2**31 - 1
    settings = ServerSettings(
        max_message_bytes=most,
        max_answer_bytes=most,
        max_texts=most,
        max_metadata_bytes=2**20,
        connection_calls=most,
        connection_age_seconds=most // 1000 - 1,
        connection_idle_seconds=most // 1000 - 1,
        max_call_seconds=most // 1000 - 1,
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
def test_larger_ones_are_refused(settings: partial[ServerSettings]) -> None:
    (name,) = settings.keywords
    with pytest.raises(ValueError, match=rf"{name}\n.*less than or equal to"):
        settings()
