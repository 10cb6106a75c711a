"""What the backend meets outside: names, connections and clocks; and connections that lead only to addresses that may be reached."""

import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from mcp_servers.core._addresses import AddressPolicy, Resolve, resolve_public

if TYPE_CHECKING:
    from aiohttp import TCPConnector

__all__ = ["Outside", "checked_connector"]


def _as_it_is(address: str, port: int) -> tuple[str, int]:
    return address, port


@dataclass(frozen=True, slots=True)
class Outside:
    """Names, connections and clocks. Only who makes the backend can give others; no setting and no client can."""

    resolve: Resolve | None = None
    """Asks the name service; `None`: that of this machine."""
    dial: Callable[[str, int], tuple[str, int]] = _as_it_is
    """Where to connect for an address and port that may be reached."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow, for the pace."""
    wall: Callable[[], float] = time.time
    """The time of day, for the age of what is kept."""
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    """Waits some seconds."""


def checked_connector(outside: Outside, policy: AddressPolicy) -> "TCPConnector":
    """Connections to the addresses that were checked: between check and connection no name is resolved again."""
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Checked(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            found: list[ResolveResult] = []
            for address in await resolve_public(host, port, policy, resolve=outside.resolve):
                place, at = outside.dial(address, port)
                found.append(
                    ResolveResult(
                        hostname=host,
                        host=place,
                        port=at,
                        family=socket.AF_INET6 if ":" in place else socket.AF_INET,
                        proto=0,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
            return found

        async def close(self) -> None:
            pass

    return aiohttp.TCPConnector(resolver=Checked(), use_dns_cache=False, keepalive_timeout=15)
