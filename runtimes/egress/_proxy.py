"""Proxy through which confined programs reach the network: it resolves every name and checks the address.

It runs in the server, on a listening socket from inside the program's network namespace, which has no other way out.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from runtimes.egress._addresses import (
    PORTS,
    AddressPolicy,
    Resolve,
    Target,
    http_target,
    plain_host,
    resolve_public,
)

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
CONNECT_SECONDS = 15
REQUEST_SECONDS = 30
MAX_REFUSALS = 256
MAX_LOGGED = 50
MAX_LOOKUPS = 8

_SOCKS_VERSION = 5
_SOCKS_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _FAILED, _NOT_ALLOWED, _UNREACHABLE, _UNKNOWN_COMMAND = 0, 1, 2, 4, 7
_SOCKS_CODES = {ErrorKind.DENIED: _NOT_ALLOWED, ErrorKind.BUSY: _FAILED}

_HEAD_END = b"\r\n\r\n"
_HTTP_CODES = {ErrorKind.BAD_ARGUMENTS: 400, ErrorKind.DENIED: 403, ErrorKind.BUSY: 503}
_HOP_BY_HOP = ("connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "upgrade")
_MAX_LINE = 300

Admit: TypeAlias = Callable[[str, int], None]
"""Checks a host and port before the name is resolved; raises `ToolFailure` for those that may not be reached."""


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """Request for a connection to a host."""

    host: str
    """Name or address, as the client wrote it."""
    port: int
    """Port."""
    granted: bytes
    """Reply to the client once the connection exists."""
    head: bytes
    """First bytes for the host."""
    refusal: Callable[[ToolFailure], bytes]
    """Return the reply for a request that failed."""


class InvalidProxyRequest(Exception):
    """A request that is refused before it names a host."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(reply)
        self.reply = reply


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ProxyRequest:
    """Read one request in the protocol that its first byte announces.

    :raises InvalidProxyRequest: if it is invalid.
    :raises EOFError: if the client hangs up.
    """
    first = await reader.readexactly(1)
    if first[0] == _SOCKS_VERSION:
        return await _read_socks(reader, writer)
    try:
        return _parse_http(first + await reader.readuntil(_HEAD_END))
    except asyncio.LimitOverrunError:
        failure = ToolFailure(ErrorKind.BAD_ARGUMENTS, "the request's headers are too long.")
        raise InvalidProxyRequest(_http_refusal(failure)) from None
    except ToolFailure as failure:
        raise InvalidProxyRequest(_http_refusal(failure)) from None


async def _read_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ProxyRequest:
    (methods,) = await reader.readexactly(1)
    await reader.readexactly(methods)
    writer.write(bytes((_SOCKS_VERSION, 0)))
    _, command, _, kind = await reader.readexactly(4)
    if kind == _NAME:
        (length,) = await reader.readexactly(1)
        host = (await reader.readexactly(length)).decode("ascii", "replace")
    else:
        host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == _IPV4 else 16)))
    port = int.from_bytes(await reader.readexactly(2), "big")
    if command != _SOCKS_CONNECT or kind not in (_IPV4, _NAME, _IPV6):
        raise InvalidProxyRequest(_socks_reply(_UNKNOWN_COMMAND))
    return ProxyRequest(host, port, _socks_reply(_GRANTED), b"", _socks_refusal)


def _socks_reply(code: int) -> bytes:
    return bytes((_SOCKS_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def _socks_refusal(failure: ToolFailure) -> bytes:
    return _socks_reply(_SOCKS_CODES.get(failure.kind, _UNREACHABLE))


def _http_refusal(failure: ToolFailure) -> bytes:
    """Return an HTTP response with the failure's line as reason, which most programs show, and as body."""
    code = _HTTP_CODES.get(failure.kind, 502)
    text = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in failure.message)
    line = text[:_MAX_LINE]
    body = f"agentflow: {line}\n"
    head = f"HTTP/1.1 {code} {line}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode("ascii")


def _parse_http(head: bytes) -> ProxyRequest:
    start, *headers = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = start.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[0].isalpha():
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "this is a proxy for HTTP and SOCKS 5 only.")
    method, target, _ = parts
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "CONNECT needs a host and a port.")
        return ProxyRequest(
            plain_host(host), int(port), b"HTTP/1.1 200 Connection established\r\n\r\n", b"", _http_refusal
        )
    if not target.lower().startswith("http://"):
        raise ToolFailure(
            ErrorKind.BAD_ARGUMENTS, "this is a proxy: requests need http:// and a host, or CONNECT."
        )
    address = http_target(target)
    return ProxyRequest(
        address.host, address.port, b"", _direct_head(method, target, address, headers), _http_refusal
    )


def _direct_head(method: str, target: str, address: Target, headers: list[str]) -> bytes:
    """Return the head of a request as a server expects it. Each connection carries one request, for the checked host only."""
    url = urlsplit(target)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    host = f"[{address.host}]" if ":" in address.host else address.host
    kept: list[str] = []
    for header in headers:
        name = header.partition(":")[0]
        if (
            any(letter in header for letter in "\r\n\0")
            or not name.isascii()
            or name != name.strip()
            or ":" not in header
        ):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "the request has an invalid header.")
        if name.lower() not in _HOP_BY_HOP:
            kept.append(header)
    port = "" if address.port == PORTS["http"] else f":{address.port}"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}{port}", *kept, "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


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
                writer.write(_http_refusal(ToolFailure(ErrorKind.BUSY, message)))
                return
            with anyio.fail_after(REQUEST_SECONDS):
                request = await _read_request(reader, writer)
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
