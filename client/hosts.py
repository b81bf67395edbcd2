"""Which addresses are of this machine alone, and which one this machine itself asks."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`, a name or an address without its port."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def from_here(host: str) -> str:
    """The address at which this machine reaches what it listens for on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
