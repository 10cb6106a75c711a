"""Network of an instance: the proxy behind the listening socket in its network namespace.

The socket is made by the instance's builder, before any program of the instance runs, and sent to the server. Programs
inside reach nothing else: their namespace has only a loopback interface.
"""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtimes._protocol import NetworkAccess

if TYPE_CHECKING:
    from runtimes.egress import EgressProxy, Resolve


class InstanceNetwork:
    """Proxy of one instance, if it has a network."""

    def __init__(
        self, access: NetworkAccess | None, resolve: "Resolve | None" = None, *, used_bytes: int = 0
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
        from runtimes.egress import PROXY_PORT  # imported only for instances with a network

        return PROXY_PORT

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs inside find the proxy."""
        if self._access is None:
            return {}
        from runtimes.egress import proxy_environment

        return proxy_environment()

    async def serve(self, name: str, listeners: Sequence[int]) -> None:
        """Serve a listening socket, and end the connections of an earlier one.

        :param listeners: its descriptor; empty without a network.
        """
        self._end_proxy()
        if self._access is None or not listeners:
            return
        from runtimes.egress import session_proxy

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
