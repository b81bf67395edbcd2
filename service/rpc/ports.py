"""Checks that a port is free, and explains why it is not."""

import errno
import socket

from dragoman.service.errors import StartupError


def check_free(host: str, port: int) -> None:
    """Raise StartupError unless `port` is free; gRPC would spread the reason over several lines of its log."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, error: OSError) -> StartupError:
    """The error to raise for `error`, which binding to `host` and `port` raised."""
    if error.errno == errno.EADDRINUSE:
        return StartupError(f"port {port} on {host} is in use")
    return StartupError(f"cannot listen on {host}, port {port}: {error.strerror}")
