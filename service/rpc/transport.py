"""Binds the gRPC port, with or without TLS, and sets the limits of each connection."""

from collections.abc import Callable

import grpc

from dragoman.client.hosts import is_loopback
from dragoman.client.values import ServerLimits
from dragoman.service.rpc.tls import server_credentials, tls_files
from dragoman.service.settings import ServerSettings

MIN_PING_SECONDS = 5
"""Faster pings close the connection; many clients and balancers ping every 10 seconds, even without calls."""

PING_SECONDS = 60
"""Interval of keepalive pings, which detect callers that have vanished, so that their work is dropped."""

PING_TIMEOUT_SECONDS = 20

Option = tuple[str, int]


def transport_options(settings: ServerSettings) -> list[Option]:
    """Channel arguments of the gRPC server."""
    return [
        # Otherwise a second server would silently share the port.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Equal, since between the two bounds gRPC refuses calls at random.
        ("grpc.max_metadata_size", settings.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_metadata_bytes),
        ("grpc.max_concurrent_streams", settings.connection_calls),
        ("grpc.max_connection_age_ms", settings.connection_age_seconds * 1000),
        # By then every call has ended, except streams that only watch.
        ("grpc.max_connection_age_grace_ms", settings.max_call_seconds * 1000),
        ("grpc.max_connection_idle_ms", settings.connection_idle_seconds * 1000),
        ("grpc.keepalive_time_ms", PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_SECONDS * 1000),
    ]


def server_limits(settings: ServerSettings) -> ServerLimits:
    """The limits of connections and messages, as GetInfo reports them."""
    return ServerLimits(
        message_bytes=settings.max_message_bytes,
        answer_bytes=settings.max_answer_bytes,
        texts=settings.max_texts,
        metadata_bytes=settings.max_metadata_bytes,
        connection_calls=settings.connection_calls,
        connection_age_seconds=settings.connection_age_seconds,
        connection_idle_seconds=settings.connection_idle_seconds,
        ping_seconds=MIN_PING_SECONDS,
        call_seconds=settings.max_call_seconds,
    )


def port_binder(settings: ServerSettings) -> Callable[[grpc.aio.Server, str], int]:
    """A function that binds a server to an address and returns the port, or raises RuntimeError.

    Raises StartupError if a TLS file is at fault.
    """
    files = tls_files(settings)
    if files is None:
        return lambda server, address: server.add_insecure_port(address)
    credentials = server_credentials(files)
    return lambda server, address: server.add_secure_port(address, credentials)


def exposure(settings: ServerSettings, closed: bool) -> tuple[str, ...]:
    """Security warnings about ports reachable beyond the loopback; `closed` if callers need a token."""
    host, metrics_host = settings.host, settings.metrics_address
    exposed = not is_loopback(host)
    warnings = []
    if exposed and not settings.tls_certificate:
        warnings.append(f"Warning: texts travel unencrypted, and {host} can be reached from other machines: set TLS.")
    if exposed and not closed and not settings.tls_client_ca:
        warnings.append(f"Warning: anyone who can reach {host} can call this server: set tokens or mutual TLS.")
    if not is_loopback(metrics_host):
        warnings.append(
            f"Warning: anyone who can reach the metrics port on {metrics_host} can read the metrics without a token: "
            "restrict access to it, or set --metrics-host."
        )
    return tuple(warnings)
