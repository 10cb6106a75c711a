"""Network of an instance: the proxy behind the listening socket in its network namespace.

The socket is made by the instance's builder, before any program of the instance runs, and sent to the server. Programs
inside reach nothing else: their namespace has only a loopback interface.
"""

import ipaddress
import socket
from collections.abc import Sequence

from agentflow.errors import ErrorKind, ToolFailure
from runtimes._protocol import HostRule, NetworkAccess, parse_host_rule
from runtimes.egress import AddressPolicy, EgressProxy, Resolve, plain_host

PROXY_PORT = 3128
"""Port of the proxy on the loopback interface of a session's network namespace."""

_SHOWN_RULES = 10


def proxy_environment() -> dict[str, str]:
    """Return the variables by which programs find the session's proxy.

    Example::

        env = {**proxy_environment(), **spec.env}
    """
    url = f"http://127.0.0.1:{PROXY_PORT}"
    env = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url) | {
        "NO_PROXY": "localhost,127.0.0.1,::1"
    }
    # Some programs read only lower-case names, others only upper-case ones. Node.js reads them if told to.
    return {**env, **{name.lower(): value for name, value in env.items()}, "NODE_USE_ENV_PROXY": "1"}


def session_proxy(
    access: NetworkAccess, name: str, *, resolve: Resolve | None = None, used_bytes: int = 0
) -> EgressProxy:
    """Return the proxy of one session.

    Example::

        proxy = session_proxy(NetworkAccess(allow=("example.org",)), "session 1")
        await proxy.start(listener)

    :param name: the session, for the log.
    :param used_bytes: traffic that already counts, of the session that it was forked from.
    """
    rules = [parse_host_rule(pattern) for pattern in access.allow]

    def admit(host: str, port: int) -> None:
        if not any(_matches(rule, host, port) for rule in rules):
            more = ", …" if len(access.allow) > _SHOWN_RULES else ""
            allowed = ", ".join(access.allow[:_SHOWN_RULES]) + more or "nothing"
            raise ToolFailure(
                ErrorKind.DENIED,
                f"{host}:{port} is not allowed: network.allow of this session has {allowed}.",
            )

    policy = AddressPolicy(access.allow_private, setting="network.allow_private")
    proxy = EgressProxy(
        policy,
        admit=admit,
        resolve=resolve,
        max_connections=access.max_connections,
        max_bytes=access.max_bytes,
        name=name,
    )
    proxy.used_bytes = used_bytes
    return proxy


def _matches(rule: HostRule, host: str, port: int) -> bool:
    if not any(port in ports for ports in rule.ports):
        return False
    if rule.host == "*":
        return True
    if rule.host.startswith("*."):
        return host.endswith("." + plain_host(rule.host[2:])) and not _is_address(host)
    return host == plain_host(rule.host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class InstanceNetwork:
    """Proxy of one instance, if it has a network."""

    def __init__(
        self, access: NetworkAccess | None, resolve: Resolve | None = None, *, used_bytes: int = 0
    ) -> None:
        self._access = access
        self._resolve = resolve
        self._used_bytes = used_bytes
        self._proxy: EgressProxy | None = None
        self._closed = False

    @property
    def port(self) -> int:
        """Port of the proxy inside; 0 without a network."""
        if self._access is None:
            return 0
        return PROXY_PORT

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs inside find the proxy."""
        if self._access is None:
            return {}
        return proxy_environment()

    async def serve(self, name: str, listeners: Sequence[int]) -> None:
        """Serve a listening socket, and end the connections of an earlier one.

        :param listeners: its descriptor; empty without a network.
        """
        self._end_proxy()
        if self._access is None or not listeners:
            return
        listener = socket.socket(fileno=listeners[0])
        listener.setblocking(False)
        self._proxy = session_proxy(
            self._access, f"instance {name}", resolve=self._resolve, used_bytes=self._used_bytes
        )
        await self._proxy.start(listener)
        if self._closed:
            self._end_proxy()

    def fork(self) -> "InstanceNetwork":
        """Return the network of a fork, whose traffic so far is its parent's."""
        self._count()
        return InstanceNetwork(self._access, self._resolve, used_bytes=self._used_bytes)

    def close(self) -> None:
        """End every connection, for good."""
        self._closed = True
        self._end_proxy()

    def _end_proxy(self) -> None:
        self._count()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    def _count(self) -> None:
        if self._proxy is not None:
            self._used_bytes = self._proxy.used_bytes
