"""Connections: floods, slow clients, heads, bodies, tokens, hosts and paths, at servers of each kind with short time limits."""

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import msgspec
import pytest

from agentflow.gateway import GatewaySettings
from agentflow.gateway import _server as gateway_server
from agentflow.http_server import Connections, _bodies, _servers
from agentflow.interop import serve_tasks
from agentflow.readers import serve_environments
from tests.agentflow.gateway._registry import EchoModel, offers, registry_at, served
from tests.agentflow.interop._served import opened
from tests.agentflow.readers.test_environments import COUNTING
from tests.attacks._table import Attack, attacks
from tests.fuzz.test_request_framings import recording

CATEGORY = "connections"
TOKEN = "token-of-the-owner"
LIMITS = {
    _servers: {"HEADER_SECONDS": 0.4, "IDLE_SECONDS": 0.4, "STALLED_SECONDS": 0.4, "QUIET_SECONDS": 0.05, "LINGER_SECONDS": 0.3, "CHECK_SECONDS": 0.05},
    _bodies: {"PIECE_SECONDS": 0.4, "HELD_SECONDS": 0.4},
    gateway_server: {"REFUSED_SECONDS": 0.05},
}  # fmt: skip
REFUSED = "(4\\d\\d|501|505|closed); witness 200"
DENIED = "(401|403); witness 200"
NO_EFFECT = "(2\\d\\d|4\\d\\d|501|505|closed); witness 200"
CLOSED = "closed; witness 200"


@dataclass
class Aim:
    """One server, and the requests that it answers."""

    port: int
    get: str
    post: str
    body: bytes
    token: str = ""
    """Valid token; empty: it asks for none."""
    connections: Connections | None = None

    def head(self, line: str = "", *lines: str, usual: bool = True, length: int | None = None) -> bytes:
        """Return a head with the usual fields, or only these."""
        sized = [] if length is None else [f"Content-Length: {length}"]
        text = "\r\n".join([line or self.line, *(self.usual if usual else ()), *sized, *lines, "", ""])
        return text.encode("utf-8", "surrogateescape")

    @property
    def line(self) -> str:
        """Line of a request that is answered with 200."""
        return f"GET {self.get} HTTP/1.1" if self.get else f"POST {self.post} HTTP/1.1"

    @property
    def good(self) -> bytes:
        """A request that is answered with 200."""
        return self.request(*self.usual)

    @property
    def usual(self) -> tuple[str, ...]:
        """Fields of a good request."""
        return (
            f"Host: 127.0.0.1:{self.port}",
            *([f"Authorization: Bearer {self.token}"] if self.token else ()),
        )

    def request(self, *lines: str) -> bytes:
        """Return a good request with only these fields."""
        body = b"" if self.get else self.body
        return self.head("", *lines, usual=False, length=len(body)) + body

    def sending(self, data: bytes, *lines: str, length: int | None = -1) -> bytes:
        """Return a request with a body."""
        size = len(data) if length == -1 else length
        return self.head(f"POST {self.post} HTTP/1.1", *lines, length=size) + data


def _deflated(data: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    return packer.compress(data) + packer.flush()


_ZEROS = bytes(40 << 20)
_GZIP = gzip.compress(_ZEROS, 9)
_BOMBS = {
    "gzip": _GZIP, "x-gzip": _GZIP, "deflate": _deflated(_ZEROS, 15), "raw deflate": _deflated(_ZEROS, -15), "stacked": gzip.compress(_GZIP, 9),
    "br": bytes.fromhex("5bffff7f") + bytes(100), "zstd": bytes.fromhex("28b52ffd") + bytes(100),
}  # fmt: skip
_ENCODINGS = {"raw deflate": "deflate", "stacked": "gzip, gzip"}
CHUNKED = "Transfer-Encoding: chunked"

Raw = Callable[[Aim], bytes]
ONE: dict[str, tuple[str, Raw, str]] = {
    "slow: nothing": ("connect and send nothing", lambda aim: b"", CLOSED),
    "slow: a letter": ("hold a connection by a letter", lambda aim: b"G", CLOSED),
    "slow: half a head": ("hold a connection by half a head", lambda aim: aim.good[:30], CLOSED),
    "slow: a head without its end": ("hold a connection by a head without its end", lambda aim: aim.head()[:-2], CLOSED),
    "slow: an empty line": ("hold a connection by an empty line", lambda aim: b"\r\n", "(4\\d\\d|closed); witness 200"),
    "slow: idle": ("hold a connection after a request", lambda aim: aim.good, "200; witness 200"),
    "slow: next head": ("hold a connection by the head of the next request", lambda aim: aim.good + b"GET", "200; witness 200"),
    "head: line": ("send a long line", lambda aim: aim.head(f"GET /{'x' * 100_000} HTTP/1.1"), REFUSED),
    "head: method": ("send a long method", lambda aim: aim.head(f"{'X' * 100_000} / HTTP/1.1"), REFUSED),
    "head: version": ("send a long version", lambda aim: aim.head(f"GET / HTTP/1.{'1' * 100_000}"), REFUSED),
    "head: query": ("send a long query", lambda aim: aim.head(f"GET {aim.get}?{'a=b&' * 30_000} HTTP/1.1"), REFUSED),
    "head: name": ("send a long name of a field", lambda aim: aim.head("", f"{'X' * 100_000}: y"), REFUSED),
    "head: value": ("send a long field", lambda aim: aim.head("", f"X: {'y' * 100_000}"), REFUSED),
    "head: fields": ("send 20,000 fields", lambda aim: aim.head("", *(f"X-{number}: y" for number in range(20_000))), REFUSED),
    "head: empty fields": ("send 60,000 fields without a value", lambda aim: aim.head("", *["X:"] * 60_000), REFUSED),
    "head: cookie": ("send a long cookie", lambda aim: aim.head("", f"Cookie: {'a=b; ' * 30_000}"), REFUSED),
    "head: cookies": ("send 5,000 cookies", lambda aim: aim.head("", *["Cookie: a=bcdefghijklmnop"] * 5_000), REFUSED),
    "head: host": ("send a long host", lambda aim: aim.head("", f"Host: {'x' * 100_000}", usual=False), REFUSED),
    "head: token": ("send a long token", lambda aim: aim.head("", f"Host: 127.0.0.1:{aim.port}", f"Authorization: Bearer {'x' * 100_000}", usual=False), REFUSED),
    "head: folded": ("send a long folded field", lambda aim: aim.head("", "X: y", *[" z" * 100] * 1_000), REFUSED),
    "head: spaces": ("send a field of spaces", lambda aim: aim.head("", f"X:{' ' * 100_000}y"), REFUSED),
    "head: encodings": ("send a list of 10,000 encodings", lambda aim: aim.head("", f"Accept-Encoding: {'gzip;q=0.1, ' * 10_000}"), REFUSED),
    "head: ranges": ("ask for 10,000 ranges", lambda aim: aim.head("", f"Range: bytes={'0-1,' * 20_000}0-1"), REFUSED),
    "head: after a request": ("send a long head after a request", lambda aim: aim.good + aim.head("", *[f"X: {'y' * 900}"] * 300), "(200, )?(4\\d\\d|200); witness 200"),
    "head: newlines": ("send newlines without end", lambda aim: b"\r\n" * 100_000, REFUSED),
    "head: zeros": ("send zeros", lambda aim: bytes(200_000), REFUSED),
    "body: half": ("stop in the middle of a body", lambda aim: aim.sending(b"{", length=100), "(400|401|404|405|408|closed); witness 200"),
    "body: half a chunk": ("stop in the middle of a chunk", lambda aim: aim.sending(b"ff\r\n{", CHUNKED, length=None), "(400|401|404|405|408|closed); witness 200"),
    "body: no last chunk": ("never send the last chunk", lambda aim: aim.sending(b"2\r\n{}\r\n", CHUNKED, length=None), "(400|401|404|405|408|closed); witness 200"),
    "body: no chunk": ("send a chunk without a size", lambda aim: aim.sending(b"zz\r\n", CHUNKED, length=None), "(4\\d\\d|closed); witness 200"),
    "body: expect": ("ask for permission and send nothing", lambda aim: aim.sending(b"", "Expect: 100-continue", length=100), "(100, )?(4\\d\\d|closed); witness 200"),
    "body: trailers": ("send trailers without end", lambda aim: aim.sending(b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 50_000, CHUNKED, length=None), "(4\\d\\d|closed); witness 200"),
    "body: a long trailer": ("send a long trailer", lambda aim: aim.sending(b"2\r\n{}\r\n0\r\nX: " + b"y" * 200_000, CHUNKED, length=None), "(4\\d\\d|closed); witness 200"),
    "body: extension": ("send a long extension of a chunk", lambda aim: aim.sending(b"2;" + b"a" * 200_000, CHUNKED, length=None), "(4\\d\\d|closed); witness 200"),
    "body: announced": ("announce a body of 1 TB", lambda aim: aim.sending(b"{", length=1 << 40), "(4\\d\\d|closed); witness 200"),
    "body: too large": ("send a body of 9 MB", lambda aim: aim.sending(b" " * (9 << 20)), "(200|4\\d\\d|closed); witness 200"),
    **{
        f"bomb: {name}": (f"send 40 MB packed as {name}", lambda aim, name=name: aim.sending(_BOMBS[name], f"Content-Encoding: {_ENCODINGS.get(name, name)}"), "(200|4\\d\\d|closed); witness 200")
        for name in _BOMBS
    },
    "host: other": ("rebind a name to the server", lambda aim: aim.head("", "Host: evil.example", f"Authorization: Bearer {aim.token}", usual=False), NO_EFFECT),
    "path: dots": ("leave the paths", lambda aim: aim.head("GET /../../etc/passwd HTTP/1.1"), NO_EFFECT),
    "path: encoded dots": ("leave the paths by encoded dots", lambda aim: aim.head("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1"), NO_EFFECT),
    "path: slashes": ("begin a path with two slashes", lambda aim: aim.head(f"GET /{aim.get or aim.post} HTTP/1.1"), NO_EFFECT),
    "path: null": ("end a path by a null", lambda aim: aim.head(f"GET {aim.get or aim.post}%00 HTTP/1.1"), NO_EFFECT),
    "path: raw null": ("put a null into a path", lambda aim: aim.head("GET /a\x00b HTTP/1.1"), REFUSED),
    "path: newline": ("put an encoded newline into a path", lambda aim: aim.head("GET /%0d%0aX-Injected:1 HTTP/1.1"), NO_EFFECT),
    "path: backslashes": ("write a path with backslashes", lambda aim: aim.head("GET \\..\\x HTTP/1.1"), NO_EFFECT),
    "path: bytes": ("put bytes that are no text into a path", lambda aim: aim.head("GET /\udcff\udcfe HTTP/1.1"), NO_EFFECT),
    "path: half an escape": ("end a path in an escape", lambda aim: aim.head("GET /%f HTTP/1.1"), NO_EFFECT),
    "path: absolute": ("use the server as a proxy", lambda aim: aim.head("GET http://127.0.0.1:1/ HTTP/1.1"), NO_EFFECT),
    "path: user": ("put a user into an absolute path", lambda aim: aim.head(f"GET http://127.0.0.1:{aim.port}@evil.example/ HTTP/1.1"), NO_EFFECT),
    "path: scheme": ("ask for a file", lambda aim: aim.head("GET file:///etc/passwd HTTP/1.1"), NO_EFFECT),
    "path: star": ("ask for the options of the server", lambda aim: aim.head("OPTIONS * HTTP/1.1"), NO_EFFECT),
    "method: connect": ("open a tunnel", lambda aim: aim.head("CONNECT 127.0.0.1:1 HTTP/1.1"), NO_EFFECT),
    "method: trace": ("reflect a token", lambda aim: aim.head("TRACE / HTTP/1.1"), NO_EFFECT),
    "method: web socket": ("upgrade to a web socket", lambda aim: aim.head("", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="), NO_EFFECT),
    "method: HTTP/2": ("upgrade to HTTP/2", lambda aim: aim.head("", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQ"), NO_EFFECT),
    "pipeline: 1,000": ("send 1,000 requests at once", lambda aim: aim.good * 1_000, "200.*; witness 200"),
    "pipeline: behind one that is refused": ("hide requests behind one that is refused", lambda aim: aim.head("", "X y") + aim.good * 100, REFUSED),
}  # fmt: skip
"""Bytes on one connection, and the statuses that may come until the server closes it."""

TOKENS: dict[str, tuple[str, Callable[[str], tuple[str, ...]]]] = {
    "none": ("use a server without a token", lambda token: ()),
    "wrong": ("guess a token", lambda token: ("Authorization: Bearer wrong",)),
    "prefix": ("use a part of a token", lambda token: (f"Authorization: Bearer {token[:-1]}",)),
    "longer": ("use a token with more after it", lambda token: (f"Authorization: Bearer {token}x",)),
    "capitals": ("use a token in capitals", lambda token: (f"Authorization: Bearer {token.upper()}",)),
    "other scheme": ("use another scheme", lambda token: (f"Authorization: Basic {token}",)),
    "empty": ("use an empty token", lambda token: ("Authorization: Bearer ",)),
    "no text": ("use a token that is no text", lambda token: ("Authorization: Bearer \udcff\udcfe",)),
    "null": ("end a token early", lambda token: (f"Authorization: Bearer {token}%00",)),
    "list": ("send tokens as a list", lambda token: (f"Authorization: Bearer x, Bearer {token}",)),
    "cookie": ("send a token as a cookie", lambda token: (f"Cookie: Authorization={token}; token={token}",)),
    "proxy": ("send a token as that of a proxy", lambda token: (f"Proxy-Authorization: Bearer {token}",)),
    "forwarded": ("pretend to be a proxy", lambda token: ("X-Forwarded-For: 127.0.0.1", "X-Forwarded-User: root")),
}  # fmt: skip
HOSTS: dict[str, tuple[str, Callable[[int], tuple[str, ...]]]] = {
    "other": ("rebind a name to the server", lambda port: ("Host: evil.example",)),
    "other with the port": ("rebind a name to the server's port", lambda port: (f"Host: evil.example:{port}",)),
    "suffix": ("use a name that begins like the server's", lambda port: ("Host: 127.0.0.1.evil.example",)),
    "user": ("hide a host behind a user", lambda port: (f"Host: 127.0.0.1:{port}@evil.example",)),
    "private": ("use an address of the network", lambda port: ("Host: 10.0.0.1",)),
    "metadata": ("use the address of the metadata", lambda port: ("Host: 169.254.169.254",)),
    "empty": ("send an empty host", lambda port: ("Host: ",)),
    "no text": ("send a host that is no text", lambda port: ("Host: \udcff",)),
    "bracket": ("send half an address", lambda port: ("Host: [::1",)),
    "forwarded": ("replace the host", lambda port: ("Host: evil.example", f"X-Forwarded-Host: 127.0.0.1:{port}")),
}  # fmt: skip
ORIGINS = ("http://evil.example", "null", "file://", "http://127.0.0.1:1", "http://127.0.0.1.evil.example", "https://127.0.0.1", "\udcff", "http://127.0.0.1@evil.example")  # fmt: skip


async def exchange(aim: Aim, data: bytes, host: str = "127.0.0.1") -> list[int]:
    """Send bytes, and return the statuses of everything that arrives until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", aim.port, local_addr=(host, 0))
    received = b""

    async def receive() -> None:
        nonlocal received
        with suppress(OSError):
            while piece := await reader.read(1 << 20):
                received = (received + piece)[-(1 << 20) :]

    async with anyio.create_task_group() as group:
        group.start_soon(receive)
        with suppress(OSError):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
    heads = [part for part in received.split(b"HTTP/1.")[1:] if part[1:2] == b" "]
    assert b"\nX-Injected" not in received
    return [int(part[2:5]) for part in heads]


async def witness(aim: Aim, host: str = "127.0.0.1") -> int:
    """Return the status of a good request on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", aim.port, local_addr=(host, 0))
    try:
        writer.write(aim.good)
        return int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
    except (OSError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.transport.abort()


Flood = Callable[[Aim], Awaitable[str]]


async def opened_links(aim: Aim, count: int, data: bytes, addresses: int = 1) -> list[asyncio.StreamWriter]:
    """Open connections that send some bytes each."""
    writers: list[asyncio.StreamWriter] = []
    for number in range(count):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", aim.port, local_addr=(f"127.0.0.{2 + number % addresses}", 0)
        )
        writer.write(data)
        writers.append(writer)
    await anyio.sleep(0.06)
    return writers


def _flood(data: Callable[[Aim], bytes], addresses: int = 1) -> Flood:
    async def flood(aim: Aim) -> str:
        writers = await opened_links(aim, 60, data(aim), addresses)
        seen = Counter([await witness(aim, "127.0.0.200") for _ in range(5)])
        for writer in writers:
            writer.transport.abort()
        return ", ".join(f"{count} x {status}" for status, count in sorted(seen.items()))

    return flood


async def _resets(aim: Aim) -> str:
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", aim.port)) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await anyio.sleep(0.06)
    return f"{await witness(aim)}"


async def _half_closed(aim: Aim) -> str:
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", aim.port)) as link:
            link.send(aim.good[:20])
            link.shutdown(socket.SHUT_WR)
    await anyio.sleep(0.06)
    return f"{await witness(aim)}"


async def _kept(aim: Aim) -> str:
    """Make 300 requests on one connection, in less time than answers that wait for acknowledgements would take."""
    reader, writer = await asyncio.open_connection("127.0.0.1", aim.port)
    for _ in range(300):
        writer.write(aim.good)
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.partition(b":")[2]))
    writer.transport.abort()
    return f"{await witness(aim)}"


async def _later_heads(aim: Aim) -> str:
    """Make a request, then send most of a head; all of them together have a limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_servers, "WAITING_BYTES", 200_000)
        links = await opened_links(aim, 15, aim.good)
        for writer in links:
            writer.write(aim.head("")[:-2] + (b"X: " + b"y" * 7_000 + b"\r\n") * 5)
        await anyio.sleep(0.06)
        assert aim.connections is not None
        left = len(aim.connections)
        found = f"{'bounded' if left <= 6 else f'{left} connections'}, {await witness(aim)}"
        for writer in links:
            writer.transport.abort()
    await anyio.sleep(0.06)
    return f"{found}, left {aim.connections._head_bytes}"  # pyright: ignore[reportPrivateUsage]


async def _unread(aim: Aim) -> str:
    """Make requests and read no answer."""
    links: list[socket.socket] = []
    for _ in range(5):
        link = socket.create_connection(("127.0.0.1", aim.port))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(20):
                link.send(aim.good * 500)
        links.append(link)
    await anyio.sleep(0.6)
    seen = await witness(aim)
    for link in links:
        link.close()
    return f"{seen}"


SERVED = "5 x 200"
NOT_RESET = "(5 x 200|\\d x 200, \\d x 503)"
FLOODS: dict[str, tuple[str, Flood, str]] = {
    "nothing": ("take all connections and send nothing", _flood(lambda aim: b""), SERVED),
    "a letter": ("take all connections by a letter", _flood(lambda aim: b"G"), SERVED),
    "half a head": ("take all connections by half a head", _flood(lambda aim: aim.good[:40]), SERVED),
    "long half heads": ("take all memory by half heads", _flood(lambda aim: b"GET / HTTP/1.1\r\nX: " + b"y" * 60_000), SERVED),
    "idle": ("take all connections after a request", _flood(lambda aim: aim.good), SERVED),
    "next heads": ("take all connections by the next head", _flood(lambda aim: aim.good + b"G"), SERVED),
    "refused": ("take all connections by requests that are refused", _flood(lambda aim: b"\x16\x03\r\n\r\n"), SERVED),
    "no route": ("take all connections by unknown paths", _flood(lambda aim: aim.head("GET /none HTTP/1.1")), SERVED),
    "wrong tokens": ("take all connections by wrong tokens", _flood(lambda aim: aim.head("", "Authorization: Bearer x", f"Host: 127.0.0.1:{aim.port}", usual=False)), SERVED),
    "many addresses": ("take all connections from 50 addresses", _flood(lambda aim: b"G", 50), NOT_RESET),
    "many idle addresses": ("take all connections after a request from 50 addresses", _flood(lambda aim: aim.good, 50), NOT_RESET),
    "resets": ("connect and reset", _resets, "200"),
    "half closed": ("send half a head and close half", _half_closed, "200"),
    "kept": ("make 300 requests on a connection", _kept, "200"),
    "later heads": ("take memory by heads after the first", _later_heads, "bounded, 200, left 0"),
    "unread": ("read no answer", _unread, "200"),
}  # fmt: skip
CORES = ("asgi", "aiohttp")
"""Servers without an application of their own, which would read bodies."""
OF_BODIES = ("body", "bomb")
SERVERS = (*CORES, "gateway", "serve-env", "environment")
GUARDED = ("gateway", "swarm", "serve-env", "environment")
NAMED = ("gateway", "serve-env", "environment")

_SHORT_FLOODS = ("half a head", "many addresses", "later heads", "kept")
_LONG = ("body: too large", "bomb", "pipeline")


def _is_long(name: str) -> bool:
    server, _, rest = name.removeprefix(f"{CATEGORY}: ").partition(": ")
    if rest.startswith("flood: "):
        return rest.removeprefix("flood: ") not in _SHORT_FLOODS
    own = rest.startswith(("token: ", "name: ", "origin: ")) or rest == "one key"
    short = server in ("asgi", "gateway") or rest.startswith("body")
    return not own and (not short or rest.startswith(_LONG))


ATTACKS: list[Attack] = [
    replace(attack, soak=_is_long(attack.id))
    for attack in (
        *attacks(CATEGORY, {f"{server}: {name}": (aim, name, seen) for server in SERVERS for name, (aim, _, seen) in ONE.items() if server not in CORES or not name.startswith(OF_BODIES)}),
        *attacks(CATEGORY, {f"{server}: flood: {name}": (aim, name, seen) for server in CORES for name, (aim, _, seen) in FLOODS.items()}),
        *attacks(CATEGORY, {f"{server}: token: {name}": (aim, name, DENIED) for server in GUARDED for name, (aim, _) in TOKENS.items()}),
        *attacks(CATEGORY, {f"{server}: name: {name}": (aim, name, REFUSED) for server in NAMED for name, (aim, _) in HOSTS.items()}),
        *attacks(CATEGORY, {f"{server}: origin: {origin!r}": (f"send a request from {origin!r}", origin, REFUSED) for server in ("serve-env", "environment") for origin in ORIGINS}),
        *attacks(CATEGORY, {"gateway: one key": ("keep other keys from working", "one key", "16 run, 64 x 429; other key 200, asked")}),
    )
]  # fmt: skip


@asynccontextmanager
async def short_limits() -> AsyncGenerator[None]:
    """Shorten all time limits."""
    with pytest.MonkeyPatch.context() as patch:
        for module, values in LIMITS.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield


@asynccontextmanager
async def aims(folder: Path, model: EchoModel) -> AsyncGenerator[dict[str, Aim]]:
    """Serve everything, and yield the servers by name; `other key` is another key of the gateway."""
    settings = GatewaySettings.model_validate({"token": TOKEN})
    async with AsyncExitStack() as stack:
        found: dict[str, Aim] = {}
        for kind in CORES:
            target = await stack.enter_async_context(recording(kind, []))
            found[kind] = Aim(target.port, "/1", "/1", b"{}", connections=target.connections)
        registry = await stack.enter_async_context(registry_at(folder / "gateway", settings, model))
        url = await stack.enter_async_context(served(registry, settings))
        port = int(url.rpartition(":")[2])
        found["swarm"] = Aim(port, "/swarm/status", "/swarm/episodes", b"{}", TOKEN)
        offered = b'{"offers":' + msgspec.json.encode(offers(size=2)) + b"}"
        await _asked(Aim(port, "", "/swarm/offers", offered, TOKEN))
        chat = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "x"}]}).encode()
        for name in ("gateway", "other key"):
            begun = json.loads(await _asked(found["swarm"], post=True))
            found[name] = Aim(port, "/v1/models", "/v1/chat/completions", chat, begun["keys"][""])
        host = await stack.enter_async_context(opened(folder))
        url = await stack.enter_async_context(serve_tasks(host, token=TOKEN))
        found["serve-env"] = Aim(
            int(url.rpartition(":")[2]), "/health", "/sessions", b'{"task":"none"}', TOKEN
        )
        url = await stack.enter_async_context(serve_environments({"default": COUNTING}, token=TOKEN))
        found["environment"] = Aim(int(url.rpartition(":")[2]), "", "/get_env_profile", b"{}", TOKEN)
        yield found


async def _asked(aim: Aim, *, post: bool = False) -> bytes:
    """Return the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", aim.port)
    data = aim.sending(aim.body, "Connection: close") if post or not aim.get else aim.good
    writer.write(data)
    received = await reader.read()
    writer.transport.abort()
    return received.partition(b"\r\n\r\n")[2]


async def _starve(aim: Aim, other: Aim, model: EchoModel) -> str:
    """Fill all places of a key; return what its further requests and another key get."""
    model.gate = anyio.Event()
    statuses: list[int] = []
    refused, status = Counter[int](), 0

    async def ask(who: Aim, number: int) -> None:
        # A repeated body would be taken for another attempt.
        body = who.body.replace(b'"x"', b'"x%d"' % number)
        statuses.extend(await exchange(who, who.sending(body, "Connection: close")))

    async with anyio.create_task_group() as group:
        for number in range(80):
            group.start_soon(ask, aim, number)
        with anyio.fail_after(20):
            while len(model.seen) < 16 or len(statuses) < 64:  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.01)
        refused = Counter(statuses)
        status = await witness(other)
        group.start_soon(ask, other, 0)
        with anyio.fail_after(20):
            while len(model.seen) < 17:  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.01)
        model.gate.set()
    return f"{len(model.seen) - 1} run, {refused[429]} x 429; other key {status}, asked"


async def observe(folder: Path, table: Iterable[Attack]) -> dict[str, str]:
    """Try each attack; return the outcomes by id."""
    seen: dict[str, str] = {}
    model = EchoModel()

    async def send(attack: Attack, aim: Aim, data: bytes) -> None:
        seen[attack.id] = "open"
        with anyio.move_on_after(8):
            statuses = await exchange(aim, data)
            shown = [str(status) for status in dict.fromkeys(statuses)] or ["closed"]
            seen[attack.id] = f"{', '.join(shown)}; witness {await witness(aim)}"

    async with short_limits(), aims(folder, model) as found:
        floods: list[tuple[Attack, str]] = []
        for server in (*SERVERS, "swarm"):
            async with anyio.create_task_group() as group:
                for attack in table:
                    where, _, name = attack.id.removeprefix(f"{CATEGORY}: ").partition(": ")
                    aim, code = found[where], attack.code
                    if where != server:
                        continue
                    if name.startswith("flood: ") or name == "one key":
                        floods.append((attack, where))
                        continue
                    if name.startswith("token: "):
                        data = aim.request(f"Host: 127.0.0.1:{aim.port}", *TOKENS[code][1](aim.token))
                    elif name.startswith("name: "):
                        data = aim.request(*HOSTS[code][1](aim.port), f"Authorization: Bearer {aim.token}")
                    elif name.startswith("origin: "):
                        data = aim.request(*aim.usual, f"Origin: {code}")
                    else:
                        data = ONE[code][1](aim)
                    group.start_soon(send, attack, aim, data)
        for kind in CORES:
            if (limited := found[kind].connections) is not None:
                limited.limit = 40
        for attack, where in floods:
            seen[attack.id] = "no end"
            with anyio.move_on_after(8):
                if attack.code in FLOODS:
                    seen[attack.id] = await FLOODS[attack.code][1](found[where])
                else:
                    model.seen.clear()
                    seen[attack.id] = await _starve(found[where], found["other key"], model)
    return seen
