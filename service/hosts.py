"""Which addresses are of this machine alone."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`, a name or an address without its port."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
