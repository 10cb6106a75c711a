"""Requests in arbitrary pieces to a server of each kind: no bytes are read as another request, and the server stays up."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import anyio
import pytest
from aiohttp import web
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from agentflow.http_server import AsgiServer, Connections, _servers, serving
from tests.agentflow.http_server._served import KINDS
from tests.fuzz._forms import forms

pytestmark = pytest.mark.promise("http_server:framings")

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
"""A request that stands where a body, a field or an extension is."""


class Sent(NamedTuple):
    """Bytes of one request."""

    data: bytes
    kind: Literal["good", "bad", "either", "open"] = "good"
    """It is answered; refused; one of both; or the server waits for its rest."""


def get(*lines: bytes, line: bytes = b"GET /@ HTTP/1.1", host: bool = True) -> bytes:
    """Return a request without a body."""
    return b"\r\n".join([line, *([b"Host: x"] if host else ()), *lines, b"", b""])


def post(body: bytes, *lines: bytes) -> bytes:
    """Return a request with a body and only these headers."""
    return get(*lines, line=b"POST /@ HTTP/1.1") + body


def chunked(*chunks: bytes, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """Return a body in chunks."""
    return (
        b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
        + b"0"
        + extension
        + b"\r\n"
        + trailer
        + b"\r\n"
    )


TE = b"Transfer-Encoding: chunked"
CL = b"Content-Length: %d" % len(SMUGGLED)
GOOD: tuple[bytes, ...] = (
    get(),
    get(b"X-A: " + b"y" * 4_000),
    get(*(b"X-%d: y" % number for number in range(60))),
    get(b"Accept: \t a , b ", b"X-Empty:"),
    get(b"Content-Length: 0"),
    get(line=b"OPTIONS /@ HTTP/1.1"),
    get(line=b"GET /@?a=%2e%2e&b=\\ HTTP/1.1"),
    post(SMUGGLED, CL),
    post(SMUGGLED * 500, b"content-length: %d" % (500 * len(SMUGGLED))),
    post(chunked(SMUGGLED), TE),
    post(chunked(SMUGGLED, b"\r\n0\r\n\r\n", SMUGGLED), b"transfer-encoding: Chunked"),
    post(chunked(SMUGGLED, extension=b";a=b"), TE),
    post(chunked(SMUGGLED, trailer=b"X-Sum: 1\r\n"), TE, b"Trailer: X-Sum"),
    post(SMUGGLED, CL, b"Expect: 100-continue"),
)
BAD: tuple[bytes, ...] = (
    post(SMUGGLED, b"Content-Length: 3", b"Content-Length: 5"),
    post(SMUGGLED, CL, b"Content-Length: 0"),
    post(SMUGGLED, b"Content-Length: -1"),
    post(SMUGGLED, b"Content-Length: +5"),
    post(SMUGGLED, b"Content-Length: 0x5"),
    post(SMUGGLED, b"Content-Length: 5_0"),
    post(SMUGGLED, b"Content-Length: 5 5"),
    post(SMUGGLED, b"Content-Length: " + b"9" * 400),
    post(SMUGGLED, b"Content-Length: \xb2"),
    post(SMUGGLED, b"Content-Length: 3;a"),
    post(SMUGGLED, b"Transfer-Encoding: xchunked"),
    post(SMUGGLED, b"Transfer-Encoding: chunked, gzip"),
    post(SMUGGLED, b"Transfer-Encoding: chunked, identity"),
    post(SMUGGLED, b"Transfer-Encoding:\x0bchunked"),
    get(b" folded: x", host=False),
    get(b"no colon"),
    get(b": no name"),
    get(b"X : space"),
    get(b"X\x00: null"),
    get(b"X: a\x00b"),
    get(b"X: a\rb"),
    get(b"X(y): z"),
    get(b"X\xff: y"),
    get(line=b"GET"),
    get(line=b"GET  HTTP/1.1"),
    get(line=b"GET /@ HTTP/1.1 x"),
    get(line=b"GET /@ HTTP/11"),
    get(line=b"GET /@ HTTP/1.1\x00"),
    get(line=b"GET /@ ICAP/1.1"),
    get(line=b"G\x00T /@ HTTP/1.1"),
    get(line=b"G(T /@ HTTP/1.1"),
    get(line=b"GET /@\x00 HTTP/1.1"),
    get(line=b" GET /@ HTTP/1.1"),
    get(line=b"\x16\x03\x01\x02\x00\x01"),
)
EITHER: tuple[bytes, ...] = (
    get(line=b"GET /@"),
    get(b"Y" * 70_000 + b": x"),
    get(line=b"PRI * HTTP/2.0"),
    get(line=b"GET /@ HTTP/2.0"),
    post(SMUGGLED, CL, CL),
    post(chunked(b"a"), TE, TE),
    post(chunked(b"a"), TE, b"Content-Length: 3"),
    post(chunked(b"a"), b"Content-Length: 16", TE),
    post(chunked(b"a"), b"Transfer-Encoding: gzip, chunked"),
    post(chunked(b"a"), b"Transfer-Encoding: , chunked"),
    post(b"abc", b"Content-Length: 003"),
    post(b"abc", b"Content-Length: 3, 3"),
    post(b"abc", b"Content-Length:\t3 "),
    post(SMUGGLED, CL, b"Expect: the unexpected"),
    post(b"\x1f\x8b\x08 no gzip", b"Content-Length: 11", b"Content-Encoding: gzip"),
    get(b"X: a", b" folded"),
    get(b"X: a", b"\tfolded"),
    get(b"X: \xff\xfe"),
    get(b"X: a\x0bb\x1b"),
    get(b"Host: y"),
    get(b"Connection: close"),
    get(b"Connection: keep-alive, close, \xff"),
    get(host=False),
    get(line=b"GET /@ HTTP/1.0"),
    get(line=b"GET /@ HTTP/1.9"),
    get(line=b"GET /@ HTTP/0.9"),
    get(line=b"get /@ HTTP/1.1"),
    get(line=b"GET /@ http/1.1"),
    get(line=b"GET\t/@ HTTP/1.1"),
    get(line=b"GET  /@ HTTP/1.1"),
    get(line=b"GET /@  HTTP/1.1"),
    get(line=b"BREW /@ HTTP/1.1"),
    get(line=b"GET http://y/@ HTTP/1.1"),
    get(line=b"GET //@ HTTP/1.1"),
    get(line=b"GET * HTTP/1.1"),
    get(line=b"GET /\xff@ HTTP/1.1"),
    get(line=b"GET /%ff%00%0d%0a@ HTTP/1.1"),
    get(line=b"GET http://[::1/@ HTTP/1.1"),
    get(line=b"GET " + b"/@" * 5_000 + b" HTTP/1.1"),
    b"\r\n\r\n" + get(),
    b"\n" + get(),
    get().replace(b"\r\n", b"\n"),
    get().replace(b"\r\n\r\n", b"\r\n\n"),
    *(bytes([byte]) + b"\r\n\r\n" for byte in range(0, 256, 17)),
)
OPEN: tuple[bytes, ...] = (
    get(b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: x"),
    post(chunked(SMUGGLED, trailer=b"Content-Length: 5\r\n"), TE),
    post(b"1\r\na\r\n000000000000000000000\r\n\r\n", TE),
    post(b"1\na\n0\n\n", TE),
    post(b"1 ;a\r\x00\r\na\r\n0\r\n\r\n", TE),
    post(b"f" * 40 + b"\r\n" + SMUGGLED, TE),
    post(b"\r\n" + SMUGGLED, TE),
    post(b"g\r\n" + SMUGGLED, TE),
    post(b"1_0\r\n" + SMUGGLED, TE),
    post(b"+1\r\na\r\n" + SMUGGLED, TE),
    post(b"-1\r\n" + SMUGGLED, TE),
    get(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAAA"),
    post(chunked(b"a", trailer=b"no colon\r\n"), TE),
    post(chunked(SMUGGLED, extension=b';a="\r'), TE),
    post(b"1\r\nab\r\n0\r\n\r\n", TE),
    post(b"0x1\r\na\r\n0\r\n\r\n", TE),
    post(b"ab", b"Content-Length: 9999999999"),
    post(b"ffffffff\r\nab", TE),
    post(b"1;" + b"e" * 3_000, TE),
    get()[:-1],
    get()[:-3],
    b"G",
)


LAST = Sent(get(b"Connection: close"), "either")


@dataclass
class Target:
    """A running server and the paths of the requests that it has answered."""

    port: int
    connections: Connections
    answered: list[bytes] = field(default_factory=list[bytes])
    witness: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None


@asynccontextmanager
async def recording(kind: str, paths: list[bytes]) -> AsyncGenerator[Target]:
    """Serve an application that records the path of each request whose body was complete."""
    made: list[Connections] = []

    def connections(*arguments: int, name: str) -> Connections:
        made.append(Connections(*arguments, name=name))
        return made[-1]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            more = message.get("more_body", False)
        paths.append(scope["raw_path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def handle(request: web.Request) -> web.Response:
        try:
            await request.read()
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None
        paths.append(request.raw_path.encode(errors="surrogateescape"))
        return web.Response(text="ok")

    async with AsyncExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(_servers, "Connections", connections)
        if kind == "aiohttp":
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handle)
            url = await stack.enter_async_context(serving(app))
            yield Target(int(url.rpartition(":")[2]), made[0], paths)
            return
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = AsgiServer(answer, name=kind)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            await server.begun.wait()
            try:
                yield Target(listener.getsockname()[1], server.connections, paths)
            finally:
                server.should_exit = True


@pytest.fixture(scope="module")
async def targets(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[dict[str, Target]]:
    """Yield a server of each kind."""
    async with AsyncExitStack() as stack:
        yield {kind: await stack.enter_async_context(recording(kind, [])) for kind in KINDS}


def streams() -> st.SearchStrategy[list[Sent]]:
    """Return sequences of requests on one connection."""
    kinds: tuple[tuple[Literal["good", "bad", "either", "open"], tuple[bytes, ...]], ...] = (
        ("good", GOOD), ("good", GOOD), ("bad", BAD), ("either", EITHER),
    )  # fmt: skip
    sent = st.one_of([st.builds(Sent, st.sampled_from(table), st.just(kind)) for kind, table in kinds])
    last = st.one_of(
        st.just(LAST),
        st.builds(Sent, st.sampled_from(OPEN), st.just("open")),
        st.builds(Sent, st.binary(min_size=1, max_size=40), st.just("open")),
    )

    def joined(before: list[Sent], after: Sent) -> list[Sent]:
        return [*before, after]

    return st.builds(joined, st.lists(sent, max_size=4), last)


async def ask_witness(target: Target) -> None:
    """Make a request on the connection of a client that made one before."""
    if target.witness is None:
        target.witness = await asyncio.open_connection("127.0.0.1", target.port)
    reader, writer = target.witness
    writer.write(get(line=b"GET /witness HTTP/1.1"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert await reader.readexactly(2) == b"ok"
    assert target.answered.pop() == b"/witness"


async def send(target: Target, data: bytes, cuts: Sequence[float], *, ends: bool) -> bytes:
    """Send bytes in pieces and return everything that arrives until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1 << 22)
    edges = sorted({0, len(data), *(int(cut * len(data)) for cut in cuts)})
    received = b""
    try:
        for start, end in pairwise(edges):
            writer.write(data[start:end])
            for _ in range(3):
                await asyncio.sleep(0)
        if ends:
            writer.write_eof()
        while piece := await reader.read(1 << 20):
            received += piece
    except OSError:
        # A client that sends more than is read may miss the answer.
        pass
    finally:
        writer.transport.abort()
    return received


def statuses(received: bytes, *, whole: bool) -> list[int]:
    """Return the statuses of well-formed responses, which are all that was received.

    :param whole: the last one is complete, too. It is not if malformed bytes follow its request.
    """
    found: list[int] = []
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        assert end and line.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), line
        found.append(int(line.split(b" ")[1]))
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(b":") for one in fields)}
        if b"transfer-encoding" in headers:
            received = received.partition(b"0\r\n\r\n")[2]
            continue
        # Without a size, the body ends with the connection.
        size = int(headers.get(b"content-length", 0 if found[-1] == 100 else len(received)))
        assert len(received) >= size or not whole, line
        received = received[size:]
    return found


async def check(targets: dict[str, Target], kind: str, stream: Sequence[Sent], cuts: Sequence[float]) -> None:
    target = targets[kind]
    del target.answered[:]
    whole = all(sent.kind == "good" for sent in stream[:-1]) and stream[-1].kind == "either"
    data = b"".join(sent.data.replace(b"@", b"%d" % number) for number, sent in enumerate(stream))
    with anyio.fail_after(20):
        received = await send(target, data, cuts, ends=stream[-1].kind == "open")
        found = statuses(received, whole=whole)
        while len(target.connections) > (target.witness is not None):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        answered = list(target.answered)
        await ask_witness(target)
    assert not any(status >= 500 and status not in (501, 505) for status in found), (found, received)
    assert not any(b"smuggled" in path for path in answered), (answered, data)
    # The number of a request is the first digit of its path; a path that was not ours has none.
    numbers = [int(digit[1]) for path in answered if (digit := re.search(rb"/(\d)", path))]
    assert numbers == sorted(set(numbers)), (answered, data)
    if whole:
        assert numbers == list(range(len(stream))), (answered, found)
    bad = next((number for number, sent in enumerate(stream) if sent.kind == "bad"), len(stream))
    assert all(number < bad for number in numbers), (answered, data)
    assert target.connections._head_bytes == 0  # pyright: ignore[reportPrivateUsage]


test_no_bytes_of_a_request_are_taken_for_another, test_no_bytes_of_a_request_are_taken_for_another_long = (
    forms(
        check,
        short=60,
        kind=st.sampled_from(KINDS),
        stream=streams(),
        cuts=st.lists(st.floats(0, 1), max_size=6),
        examples=[
            {"kind": kind, "stream": [Sent(get(b"X: " + b"y" * 70_000), "bad"), LAST], "cuts": []}
            for kind in KINDS
        ],
    )
)
