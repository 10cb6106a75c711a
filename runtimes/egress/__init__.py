"""Connections from confined programs to the network: the address policy, and the proxy that they go through."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes.egress._addresses import (
        PORTS,
        AddressPolicy,
        IpAddress,
        Resolve,
        Target,
        http_target,
        plain_host,
        resolve_public,
        unusual,
    )
    from runtimes.egress._proxy import Admit, EgressProxy

__all__ = [
    "PORTS",
    "AddressPolicy",
    "Admit",
    "EgressProxy",
    "IpAddress",
    "Resolve",
    "Target",
    "http_target",
    "plain_host",
    "resolve_public",
    "unusual",
]

_PROXY = ["Admit", "EgressProxy"]

__getattr__ = lazy_exports(
    __name__,
    {
        "._addresses": [name for name in __all__ if name not in _PROXY],
        "._proxy": _PROXY,
    },
)
