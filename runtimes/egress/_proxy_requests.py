"""Requests that clients send to a proxy: SOCKS 5, HTTP `CONNECT`, and HTTP with a complete URL."""

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentflow.errors import ErrorKind, ToolFailure
from runtimes.egress._addresses import PORTS, Target, http_target, plain_host

_SOCKS_VERSION = 5
_SOCKS_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _FAILED, _NOT_ALLOWED, _UNREACHABLE, _UNKNOWN_COMMAND = 0, 1, 2, 4, 7
_SOCKS_CODES = {ErrorKind.DENIED: _NOT_ALLOWED, ErrorKind.BUSY: _FAILED}

_HEAD_END = b"\r\n\r\n"
_HTTP_CODES = {ErrorKind.BAD_ARGUMENTS: 400, ErrorKind.DENIED: 403, ErrorKind.BUSY: 503}
_HOP_BY_HOP = ("connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "upgrade")
_LONGEST_LINE = 300


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


async def read_proxy_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ProxyRequest:
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
        raise InvalidProxyRequest(http_refusal(failure)) from None
    except ToolFailure as failure:
        raise InvalidProxyRequest(http_refusal(failure)) from None


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


def http_refusal(failure: ToolFailure) -> bytes:
    """Return an HTTP response with the failure's line as reason, which most programs show, and as body."""
    code = _HTTP_CODES.get(failure.kind, 502)
    text = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in failure.message)
    line = text[:_LONGEST_LINE]
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
            plain_host(host), int(port), b"HTTP/1.1 200 Connection established\r\n\r\n", b"", http_refusal
        )
    if not target.lower().startswith("http://"):
        raise ToolFailure(
            ErrorKind.BAD_ARGUMENTS, "this is a proxy: requests need http:// and a host, or CONNECT."
        )
    place = http_target(target)
    return ProxyRequest(
        place.host, place.port, b"", _direct_head(method, target, place, headers), http_refusal
    )


def _direct_head(method: str, target: str, place: Target, headers: list[str]) -> bytes:
    """Return the head of a request as a server expects it. Each connection carries one request, for the checked host only."""
    url = urlsplit(target)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    host = f"[{place.host}]" if ":" in place.host else place.host
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
    port = "" if place.port == PORTS["http"] else f":{place.port}"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}{port}", *kept, "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
