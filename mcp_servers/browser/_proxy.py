"""The only way out of the browser: a SOCKS proxy that resolves every name itself and judges where it leads.

It serves a socket in the browser's network from outside of it, so nothing needs to pass between the two but bytes.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import OrderedDict

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._addresses import AddressPolicy, Resolve, resolve_public

__all__ = ["Proxy"]

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
CONNECT_SECONDS = 15
CONNECTIONS = 1_000
REMEMBERED = 256

_VERSION = 5
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _NOT_ALLOWED, _UNREACHABLE, _UNKNOWN_COMMAND = 0, 2, 4, 7

_OWN_SERVICES = (
    "content-autofill.googleapis.com",
    "optimizationguide-pa.googleapis.com",
    "safebrowsing.googleapis.com",
    "update.googleapis.com",
)
"""Whom the browser itself would talk to; pages have no business there."""


class Proxy:
    """Connects the browser to where the policy allows."""

    def __init__(self, policy: AddressPolicy, *, resolve: Resolve | None = None) -> None:
        self._policy = policy
        self._resolve = resolve
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._refused: OrderedDict[tuple[str, int], ToolFailure] = OrderedDict()

    async def start(self, listener: socket.socket) -> None:
        """Serve what comes to the socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener)

    def close(self) -> None:
        """Take no more, and cut what is open."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()

    def why_not(self, host: str, port: int) -> ToolFailure | None:
        """Why the last connection there was refused, if it was."""
        return self._refused.get((host, port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if len(self._open) <= CONNECTIONS:
                await self._connect(reader, writer)
        except (OSError, EOFError):
            # Whoever hung up needs no answer.
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = await _asked_for(reader, writer)
        if not host:
            return _answer(writer, _UNKNOWN_COMMAND)
        try:
            outside = await self._reach(host, port)
        except ToolFailure as failure:
            self._remember(host, port, failure)
            return _answer(writer, _NOT_ALLOWED if failure.kind is ErrorKind.DENIED else _UNREACHABLE)
        self._refused.pop((host, port), None)
        self._open.add(outside[1])
        try:
            _answer(writer, _GRANTED)
            async with anyio.create_task_group() as group:
                group.start_soon(_pass_on, reader, outside[1], group.cancel_scope)
                group.start_soon(_pass_on, outside[0], writer, group.cancel_scope)
        finally:
            self._open.discard(outside[1])
            outside[1].close()

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host in _OWN_SERVICES:
            raise ToolFailure(ErrorKind.DENIED, f"{host} serves the browser, not pages.")
        reason = "nobody answers"
        for address in await resolve_public(host, port, self._policy, resolve=self._resolve):
            try:
                with anyio.fail_after(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port)
            except OSError as error:
                reason = (
                    "it does not answer in time"
                    if isinstance(error, TimeoutError)
                    else "it refuses connections"
                )
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"{host}:{port} can't be reached: {reason}.")

    def _remember(self, host: str, port: int, failure: ToolFailure) -> None:
        logger.debug("refused %s:%s: %s", host, port, failure.message)
        self._refused[host, port] = failure
        self._refused.move_to_end((host, port))
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)


async def _asked_for(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
    """The host and port that the browser wants; no host, if it wants something else."""
    _, methods = await reader.readexactly(2)
    await reader.readexactly(methods)
    writer.write(bytes((_VERSION, 0)))
    _, command, _, kind = await reader.readexactly(4)
    if kind == _NAME:
        (length,) = await reader.readexactly(1)
        host = (await reader.readexactly(length)).decode("ascii", "replace")
    else:
        packed = await reader.readexactly(4 if kind == _IPV4 else 16)
        host = str(ipaddress.ip_address(packed))
    port = int.from_bytes(await reader.readexactly(2), "big")
    return (host if command == _CONNECT and kind in (_IPV4, _NAME, _IPV6) else ""), port


def _answer(writer: asyncio.StreamWriter, code: int) -> None:
    writer.write(bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0)))


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: anyio.CancelScope
) -> None:
    """Pass bytes on until one side ends: that ends both ways. What was written by then still goes out."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    both.cancel()
