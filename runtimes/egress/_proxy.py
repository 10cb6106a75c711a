"""Proxy through which confined programs reach the network: it resolves every name and checks the address.

It runs in the server, on a listening socket from inside the program's network namespace, which has no other way out.
"""

import asyncio
import contextlib
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from runtimes.egress._addresses import AddressPolicy, Resolve, plain_host, resolve_public
from runtimes.egress._proxy_requests import (
    InvalidProxyRequest,
    ProxyRequest,
    http_refusal,
    read_proxy_request,
)

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
CONNECT_SECONDS = 15
REQUEST_SECONDS = 30
MAX_REFUSALS = 256
MAX_LOGGED = 50
MAX_LOOKUPS = 8

Admit: TypeAlias = Callable[[str, int], None]
"""Checks a host and port before the name is resolved; raises `ToolFailure` for those that may not be reached."""


class EgressProxy:
    """SOCKS 5 and HTTP proxy that connects to allowed hosts and addresses.

    Example::

        proxy = EgressProxy(AddressPolicy())
        await proxy.start(listener)
        ...
        proxy.close()

    :param policy: addresses that may be connected to.
    :param admit: check of the host and port.
    :param resolve: name resolution; by default the system's.
    :param max_connections: maximum number of clients at a time.
    :param max_bytes: maximum bytes in both directions together; `None`: no limit.
    :param name: its user, for the log of refusals; empty: they are not logged.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        admit: Admit | None = None,
        resolve: Resolve | None = None,
        max_connections: int = 1_000,
        max_bytes: int | None = None,
        name: str = "",
    ) -> None:
        self._policy = policy
        self._admit = admit
        self._resolve = resolve
        self._max_connections = max_connections
        self._max_bytes = max_bytes
        self._name = name
        self._server: asyncio.Server | None = None
        self._clients = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._refused: OrderedDict[tuple[str, int], ToolFailure] = OrderedDict()
        self._logged = 0
        self._lookups = anyio.CapacityLimiter(MAX_LOOKUPS)
        self.used_bytes = 0
        """Bytes forwarded so far, in both directions."""

    async def start(self, listener: socket.socket) -> None:
        """Serve connections that arrive at the socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener)

    def close(self) -> None:
        """Stop listening and abort open connections. It can be started again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._open):
            writer.transport.abort()

    def refusal(self, host: str, port: int) -> ToolFailure | None:
        """Return the reason why the last connection to this host and port was refused, if it was."""
        return self._refused.get((host, port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self._clients += 1
        try:
            if self._clients > self._max_connections:
                message = f"the {self._max_connections} connections of this session are in use."
                writer.write(http_refusal(ToolFailure(ErrorKind.BUSY, message)))
                return
            with anyio.fail_after(REQUEST_SECONDS):
                request = await read_proxy_request(reader, writer)
            await self._connect(request, reader, writer)
        except InvalidProxyRequest as error:
            writer.write(error.reply)
        except (OSError, EOFError):
            # The other side has hung up and needs no answer.
            pass
        finally:
            self._clients -= 1
            self._open.discard(writer)
            writer.close()

    async def _connect(
        self, request: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            outside = await self._reach(request.host, request.port)
        except ToolFailure as failure:
            self._record_refusal(request.host, request.port, failure)
            writer.write(request.refusal(failure))
            return
        self._refused.pop((request.host, request.port), None)
        self._open.add(outside[1])
        try:
            writer.write(request.granted)
            outside[1].write(request.head)
            async with anyio.create_task_group() as group:
                # A client may close its side after a request with a URL, and wait for the response.
                group.start_soon(
                    self._forward, reader, outside[1], None if request.head else group.cancel_scope
                )
                group.start_soon(self._forward, outside[0], writer, group.cancel_scope)
        finally:
            self._open.discard(outside[1])
            outside[1].close()

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = plain_host(host)
        if self._admit is not None:
            self._admit(host, port)
        if self._spent:
            raise ToolFailure(
                ErrorKind.DENIED, f"this session has used its {self._max_bytes} bytes of network traffic."
            )
        async with self._lookups:
            addresses = await resolve_public(host, port, self._policy, resolve=self._resolve)
        reason = "it has no address"
        for address in addresses:
            try:
                with anyio.fail_after(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port)
            except OSError as error:
                reason = (
                    "it does not answer in time"
                    if isinstance(error, TimeoutError)
                    else "it refuses connections"
                )
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"{host}:{port} cannot be reached: {reason}.")

    @property
    def _spent(self) -> bool:
        return self._max_bytes is not None and self.used_bytes >= self._max_bytes

    def _record_refusal(self, host: str, port: int, failure: ToolFailure) -> None:
        if self._name and (host, port) not in self._refused and self._logged < MAX_LOGGED:
            self._logged += 1
            end = " Further refusals of this session are not logged." if self._logged == MAX_LOGGED else ""
            logger.warning("%s: %s%s", self._name, failure.message, end)
        self._refused[host, port] = failure
        self._refused.move_to_end((host, port))
        if len(self._refused) > MAX_REFUSALS:
            self._refused.popitem(last=False)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: anyio.CancelScope | None
    ) -> None:
        """Forward bytes until one side closes, then end `both` directions. Data already written is still sent."""
        with contextlib.suppress(OSError):
            while not self._spent and (data := await reader.read(CHUNK)):
                self.used_bytes += len(data)
                writer.write(data)
                await writer.drain()
        if both is not None:
            both.cancel()
