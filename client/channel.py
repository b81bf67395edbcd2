"""Channel arguments and credentials of a client's calls."""

from dragoman.client.hosts import is_loopback
from dragoman.client.tls import Tls
from dragoman.v1.names import AUTHORIZATION

ChannelOptions = list[tuple[str, int | str]]

ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
"""Service config that spreads calls over all servers of an address."""


def channel_options(address: str, tls: Tls | None) -> ChannelOptions:
    """Channel arguments for `address`, which is HOST:PORT or a gRPC name."""
    options: ChannelOptions = [
        # The server bounds its responses; gRPC's default limit would reject some of them.
        ("grpc.max_receive_message_length", -1),
        ("grpc.service_config", ROUND_ROBIN),
        # gRPC's default maximum of 2 minutes exceeds the time limit of most calls.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if is_loopback(address.rpartition(":")[0]):
        # A proxy set in the environment serves other hosts only.
        options.append(("grpc.enable_http_proxy", 0))
    return options if tls is None else [*options, *tls.options()]


def is_token(text: str) -> bool:
    """Whether `text` can be a bearer token: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata that carries `token`; none without one. Raises ValueError if it cannot be a token."""
    if not is_token(token):
        # Does not repeat the token, as gRPC's own error would.
        raise ValueError("token must be printable ASCII without spaces")
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
