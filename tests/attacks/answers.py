"""Answers: servers that send too much, never end, redirect, pack, or lie, to each client that calls other programs."""

import asyncio
import gzip
import json
import re
import resource
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain, repeat

import anyio

from agentflow.errors import AgentFlowError
from agentflow.models import Accounts
from agentflow.models._request_error import RequestError
from tests.agentflow.models._serving import call, painter
from tests.agentflow.test_http_client import (
    embeddings,
    engine,
    engine_models,
    environment,
    gateway,
    openenv,
    peer,
    stream,
    tools,
    vision,
)
from tests.attacks._table import Attack, attacks

CATEGORY = "answers"
MIB = 1 << 20
SECRETS = ("secret-key", "Bearer token", "x-api-key")
"""Parts of the credentials of the clients."""


async def model(url: str) -> None:
    """Call a model with a key."""
    async with painter(url, max_attempts=1, api_key="secret-key") as asked:
        await asked.complete(call())


async def messages(url: str) -> None:
    """Call a model of another API, whose key is in a header of its own."""
    async with painter(url, max_attempts=1, api="anthropic", api_key="secret-key") as asked:
        await asked.complete(call())


CLIENTS: dict[str, Callable[[str], Awaitable[None]]] = {
    "model": model, "messages": messages, "stream": stream, "gateway": gateway, "environment": environment, "openenv": openenv, "engine": engine,
    "engine's models": engine_models, "embeddings": embeddings, "vision": vision, "tools": tools, "peer": peer,
}  # fmt: skip
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
JSON = b"Content-Type: application/json\r\n"
Pieces = Callable[[int], Iterator[bytes]]
"""Bytes to send, given the port of another server."""


def _packed(data: bytes, encoding: bytes) -> Pieces:
    return lambda port: iter((OK + JSON + b"Content-Encoding: " + encoding + b"\r\n\r\n" + data,))


def _deflate(bits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    return packer.compress(bytes(80 * MIB)) + packer.flush()


_GZIP = gzip.compress(bytes(80 * MIB), 9)


def _redirect(status: int, location: bytes) -> Pieces:
    line = b"HTTP/1.1 %d Moved\r\nConnection: close\r\nContent-Length: 0\r\nLocation: " % status
    return lambda port: iter((line + location.replace(b"$PORT", b"%d" % port) + b"\r\n\r\n",))


def _whole(*headers: bytes, body: bytes = b"{}") -> Pieces:
    return lambda port: iter((OK + JSON + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body,))


def _endless(head: bytes, piece: bytes, count: int) -> Pieces:
    return lambda port: chain([head], repeat(piece, count))


FAILED = "failed in one line; elsewhere 0"
ANY = "(failed in one line|answered); elsewhere 0"
OTHER = b"http://127.0.0.1:$PORT/elsewhere"
TABLE: dict[str, tuple[str, Pieces, str]] = {
    **{f"redirect: {status}": (f"redirect to another host with {status}", _redirect(status, OTHER), FAILED) for status in (301, 302, 303, 307, 308)},
    "redirect: loop": ("redirect without end", _redirect(307, b"/again"), FAILED),
    "redirect: file": ("redirect to a file", _redirect(302, b"file:///etc/passwd"), FAILED),
    "redirect: user": ("redirect to another host behind a user", _redirect(302, b"http://127.0.0.1@127.0.0.1:$PORT/"), FAILED),
    "redirect: relative": ("redirect by an address without a scheme", _redirect(308, b"//127.0.0.1:$PORT/"), FAILED),
    "redirect: not an address": ("redirect to no address", _redirect(302, b"http://[::1"), FAILED),
    "redirect: not text": ("redirect to bytes that are no text", _redirect(302, b"\xff\xfe"), FAILED),
    "location: 200": ("name another host in an answer that is no redirect", _whole(b"Location: " + OTHER, b"Refresh: 0; url=" + OTHER), ANY),
    "packed: gzip": ("send 80 MB packed as gzip", _packed(_GZIP, b"gzip"), FAILED),
    "packed: x-gzip": ("send 80 MB packed by an old name", _packed(_GZIP, b"x-gzip"), FAILED),
    "packed: deflate": ("send 80 MB packed as deflate", _packed(_deflate(15), b"deflate"), FAILED),
    "packed: raw deflate": ("send 80 MB packed as raw deflate", _packed(_deflate(-15), b"deflate"), FAILED),
    "packed: twice": ("send a bomb in a bomb", _packed(gzip.compress(_GZIP, 9), b"gzip, gzip"), FAILED),
    "packed: identity and gzip": ("hide a bomb behind identity", _packed(_GZIP, b"identity, gzip"), FAILED),
    "packed: br": ("claim brotli", _packed(b"\x5b\xff\xff\x7f" + bytes(99), b"br"), FAILED),
    "packed: zstd": ("claim zstd", _packed(b"\x28\xb5\x2f\xfd" + bytes(99), b"zstd"), FAILED),
    "packed: unknown": ("claim an unknown encoding", _packed(b"{}", b"evil"), FAILED),
    "packed: two fields": ("name encodings in two fields", _whole(b"Content-Encoding: identity", b"Content-Encoding: gzip", body=_GZIP), FAILED),
    "packed: transfer": ("pack the transfer", _whole(b"Transfer-Encoding: gzip, chunked", body=b"%x\r\n" % len(_GZIP) + _GZIP + b"\r\n0\r\n\r\n"), FAILED),
    "interim: 100": ("send 20,000 interim answers", _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 200), FAILED),
    "interim: 103": ("send 20,000 hints", _endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100, 200), FAILED),
    "interim: 101": ("switch to another protocol", lambda port: iter((b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n" + bytes(1000),)), FAILED),
    "head: fields": ("send fields without end", _endless(OK, b"X: y\r\n" * 10_000, 100), FAILED),
    "head: a field": ("send a field without end", _endless(OK + b"X: ", b"y" * MIB, 64), FAILED),
    "head: line": ("send a first line without end", _endless(b"HTTP/1.1 200 ", b"y" * MIB, 64), FAILED),
    "head: cookies": ("set 10,000 cookies", _endless(OK, b"Set-Cookie: a%d=b\r\n" * 1_000, 10), FAILED),
    "body: chunks": ("send tiny chunks without end", _endless(OK + JSON + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 20_000, 5), FAILED),
    "body: extension": ("send an extension of a chunk without end", _endless(OK + JSON + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * MIB, 64), FAILED),
    "body: trailers": ("send trailers without end", _endless(OK + JSON + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n" * 10_000, 100), FAILED),
    "body: huge chunk": ("announce a chunk of 16 EB", _whole(b"Transfer-Encoding: chunked", body=b"ffffffffffffffff\r\n{}"), FAILED),
    "body: huge length": ("announce 1 EB", _whole(b"Content-Length: 1000000000000000000"), FAILED),
    "body: short": ("end before the announced length", _whole(b"Content-Length: 100"), FAILED),
    "body: two lengths": ("send two lengths", _whole(b"Content-Length: 2", b"Content-Length: 3"), FAILED),
    "body: length and chunks": ("send a length and chunks", _whole(b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n"), ANY),
    "body: deep": ("exhaust the stack", _whole(body=b"[" * MIB), FAILED),
    "body: deep objects": ("exhaust the stack by objects", _whole(body=b'{"a":' * 200_000), FAILED),
    "body: digits": ("send a number of a million digits", _whole(body=b"9" * MIB), FAILED),
    "body: values": ("take memory by small values", _whole(body=b'{"data":[' + b"[]," * 300_000 + b"1]}"), FAILED),
    "body: not text": ("send bytes that are no text", _whole(body=b'{"a":"\xff\xfe"}'), FAILED),
    "body: terminal": ("send sequences for a terminal", lambda port: iter((b"HTTP/1.1 400 \x1b[2J\r\nConnection: close\r\n" + JSON + b'\r\n{"error":{"message":"\\u001b]0;x\\u0007\\nsecond line"}}',)), FAILED),
    "events: one": ("send an event without end", _endless(OK + b"Content-Type: text/event-stream\r\n\r\ndata: ", b"a" * MIB, 96), FAILED),
    "events: many": ("send empty events", _endless(OK + b"Content-Type: text/event-stream\r\n\r\n", b"data:\n\n" * 20_000, 5), ANY),
    "events: comments": ("send comments", _endless(OK + b"Content-Type: text/event-stream\r\n\r\n", b": \n" * 50_000, 5), ANY),
}  # fmt: skip
USAGES: dict[str, object] = {
    "negative": {"prompt_tokens": -5, "completion_tokens": -5}, "huge": {"prompt_tokens": 10**18, "completion_tokens": 1}, "beyond 64 bits": {"prompt_tokens": 10**30},
    "fraction": {"prompt_tokens": 1.5, "completion_tokens": 0.5}, "text": {"prompt_tokens": "5"}, "list": [], "null": None, "true": {"prompt_tokens": True}, "nested": {"prompt_tokens": {"a": 1}},
    "infinite": {"prompt_tokens": 1e308, "completion_tokens": 1e308}, "zero": {"prompt_tokens": 0, "completion_tokens": 0}, "other keys": {"tokens": -1, "total_tokens": -100},
}  # fmt: skip
_LINES = (
    "packed: two fields",
    "packed: transfer",
    "body: deep",
    "body: deep objects",
    "body: digits",
    "body: values",
    "body: not text",
)
"""Bodies that are short lines without events."""
_SHORT = ("model", "gateway", "engine")
_HEAVY = (
    "head: a field",
    "head: line",
    "body: extension",
    "events: one",
    "body: values",
    "head: fields",
    "body: trailers",
)

ATTACKS: list[Attack] = [
    *(
        attack
        for client in CLIENTS
        for name, (aim, _, seen) in TABLE.items()
        for attack in attacks(
            CATEGORY,
            {f"{client}: {name}": (aim, name, ANY if client == "stream" and name in _LINES else seen)},
            soak=client not in _SHORT or name in _HEAVY,
        )
    ),
    *attacks(CATEGORY, {f"usage: {name}": ("lift the budget of a run", name, "counted 1 to 2000 tokens") for name in USAGES}),
]  # fmt: skip


@asynccontextmanager
async def lying(pieces: Iterator[bytes] | None, received: list[bytes]) -> AsyncGenerator[int]:
    """Serve some bytes to each request, and yield the port; without bytes, keep what arrives."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            received.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in pieces or ():
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=MIB)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


async def _answered(client: str, name: str) -> str:
    elsewhere: list[bytes] = []
    async with lying(None, elsewhere) as other, lying(TABLE[name][1](other), []) as port:
        outcome = "answered"
        try:
            with anyio.fail_after(60):
                await CLIENTS[client](f"http://127.0.0.1:{port}")
        except (AgentFlowError, RequestError) as error:
            outcome = "failed in one line" if re.fullmatch("[^\n\x1b]*", str(error)) else f"failed: {error!r}"
        except Exception as error:  # An attack has succeeded.
            outcome = f"raised {error!r:.200}"
    return f"{outcome}; elsewhere {len(elsewhere)}"


async def _counted(name: str) -> str:
    message = {"role": "assistant", "content": '{"name": "red", "shade": 3}'}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGES[name]}
    accounts = Accounts(max_tokens=1_000_000)
    async with (
        lying(_whole(body=json.dumps(body).encode())(0), []) as port,
        painter(f"http://127.0.0.1:{port}", accounts) as asked,
    ):
        await asked.complete(call())
    counted = accounts.total.prompt_tokens + accounts.total.completion_tokens
    return "counted 1 to 2000 tokens" if 1 <= counted <= 2_000 else f"counted {counted}"


async def observe(table: Iterable[Attack]) -> dict[str, str]:
    """Try each attack; return the outcomes by id."""
    seen: dict[str, str] = {}

    async def look(
        attack: Attack, observation: Callable[[], Awaitable[str]], limit: anyio.CapacityLimiter
    ) -> None:
        async with limit:
            seen[attack.id] = await observation()

    limit = anyio.CapacityLimiter(8)
    before = _peak()
    async with anyio.create_task_group() as group:
        for attack in table:
            client, _, name = attack.id.removeprefix(f"{CATEGORY}: ").partition(": ")
            counts = partial(_counted, name) if client == "usage" else partial(_answered, client, name)
            group.start_soon(look, attack, counts, limit)
    # Each of eight at once holds at most 64 MiB, which a list doubles while it grows.
    assert _peak() - before < 8 * 2 * 64 + 256
    return seen
