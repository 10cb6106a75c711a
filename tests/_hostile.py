"""Servers that answer with too much: real sockets that write until the client leaves or a quarter of a gigabyte is sent."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import chain, repeat
from typing import Literal, TypeAlias

import anyio

Attack: TypeAlias = Literal["bomb", "body", "error", "head", "line", "drip"]
MIB = 1 << 20
SENT_MIB = 256
"""Length of endless answers, which end all the same: a client that reads all of it fails the test, not the machine."""
_TYPE = b"Content-Type: application/json\r\n"
_OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


@cache
def _bomb() -> bytes:
    """Return compressed zeros: a quarter of a megabyte that becomes a quarter of a gigabyte."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(SENT_MIB)), packer.flush()])


def _pieces(attack: Attack) -> Iterator[bytes]:
    letters = repeat(b"a" * MIB, SENT_MIB)
    match attack:
        case "bomb":
            return iter((_OK + _TYPE + b"Content-Encoding: gzip\r\n\r\n", _bomb()))
        case "body":
            return chain([_OK + _TYPE + b"\r\n{}"], repeat(b" " * MIB, SENT_MIB))
        case "error":
            return chain([b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n" + _TYPE + b"\r\n"], letters)
        case "head":
            return chain([_OK], repeat(b"X-More: again and again\r\n" * 4096, 4 * SENT_MIB))
        case "line":
            return chain([_OK + b"Content-Type: text/event-stream\r\n\r\ndata: "], letters)
        case "drip":
            return iter((_OK + _TYPE + b"\r\n ",))


@asynccontextmanager
async def hostile(attack: Attack) -> AsyncGenerator[str]:
    """Serve one attack to every request, and yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in _pieces(attack):
                writer.write(piece)
                await writer.drain()
            if attack == "drip":
                # Nothing more, and no end.
                await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=MIB)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.close()
        with anyio.CancelScope(shield=True):
            await server.wait_closed()
