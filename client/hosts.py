"""Loopback addresses, and the address at which a machine reaches its own servers."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address without a port, is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def from_here(host: str) -> str:
    """The address at which this machine reaches a server of its own that listens on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
