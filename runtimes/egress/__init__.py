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
    from runtimes.egress._session_proxy import PROXY_PORT, proxy_environment, session_proxy

__all__ = [
    "PORTS",
    "PROXY_PORT",
    "AddressPolicy",
    "Admit",
    "EgressProxy",
    "IpAddress",
    "Resolve",
    "Target",
    "http_target",
    "plain_host",
    "proxy_environment",
    "resolve_public",
    "session_proxy",
    "unusual",
]

_PROXY = ["Admit", "EgressProxy"]
_SESSION_PROXY = ["PROXY_PORT", "proxy_environment", "session_proxy"]

__getattr__ = lazy_exports(
    __name__,
    {
        "._addresses": [name for name in __all__ if name not in (*_PROXY, *_SESSION_PROXY)],
        "._proxy": _PROXY,
        "._session_proxy": _SESSION_PROXY,
    },
)
