"""The browser's only connection to the network: a SOCKS proxy that resolves every name and checks the address.

It runs outside the browser's network namespace, on a listening socket from inside it.
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

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
CONNECT_SECONDS = 15
MAX_CONNECTIONS = 1_000
MAX_REFUSALS = 256

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
"""Hosts that the browser itself would contact; pages have no use for them."""


class BrowserProxy:
    """SOCKS5 proxy that connects the browser to allowed addresses."""

    def __init__(self, policy: AddressPolicy, *, resolve: Resolve | None = None) -> None:
        self._policy = policy
        self._resolve = resolve
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._refused: OrderedDict[tuple[str, int], ToolFailure] = OrderedDict()

    async def start(self, listener: socket.socket) -> None:
        """Serve connections that arrive at the socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener)

    def close(self) -> None:
        """Stop listening and abort open connections."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()

    def refusal(self, host: str, port: int) -> ToolFailure | None:
        """Return the reason why the last connection to this host and port was refused, if it was."""
        return self._refused.get((host, port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if len(self._open) <= MAX_CONNECTIONS:
                await self._connect(reader, writer)
        except (OSError, EOFError):
            # The other side has hung up and needs no answer.
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = await _read_request(reader, writer)
        if not host:
            return _answer(writer, _UNKNOWN_COMMAND)
        try:
            outside = await self._reach(host, port)
        except ToolFailure as failure:
            self._record_refusal(host, port, failure)
            return _answer(writer, _NOT_ALLOWED if failure.kind is ErrorKind.DENIED else _UNREACHABLE)
        self._refused.pop((host, port), None)
        self._open.add(outside[1])
        try:
            _answer(writer, _GRANTED)
            async with anyio.create_task_group() as group:
                group.start_soon(_forward, reader, outside[1], group.cancel_scope)
                group.start_soon(_forward, outside[0], writer, group.cancel_scope)
        finally:
            self._open.discard(outside[1])
            outside[1].close()

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host in _OWN_SERVICES:
            raise ToolFailure(ErrorKind.DENIED, f"{host} is a service of the browser, not of pages.")
        reason = "it has no address"
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
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"{host}:{port} cannot be reached: {reason}.")

    def _record_refusal(self, host: str, port: int, failure: ToolFailure) -> None:
        logger.debug("refused %s:%s: %s", host, port, failure.message)
        self._refused[host, port] = failure
        self._refused.move_to_end((host, port))
        if len(self._refused) > MAX_REFUSALS:
            self._refused.popitem(last=False)


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
    """Read a SOCKS request; return the host and port, or an empty host for an unsupported command."""
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


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: anyio.CancelScope
) -> None:
    """Forward bytes until one side closes, which ends both directions. Data already written is still sent."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    both.cancel()
