"""Addresses that only programs of this machine reach."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return true if a server bound to this host is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("127.evil.example")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
