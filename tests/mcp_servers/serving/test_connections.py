"""Connections that send no request, or no valid token."""

import json
import socket
from collections.abc import AsyncGenerator

import anyio
import anyio.to_thread
import httpx2
import pytest

from agentflow.http_server import _servers
from mcp_servers import HttpOptions, HttpServer, ToolTable
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._serving import headers_of, post, request, serving

ALICE = {"Authorization": "Bearer token-of-alice"}


@pytest.fixture
async def server(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[HttpServer]:
    monkeypatch.setattr(_servers, "CHECK_SECONDS", 0.01)
    options = HttpOptions(port=0, tokens={"alice": "token-of-alice"}, grace_seconds=0.1)
    async with ToolTable([counter]) as table, serving(table, options) as server:
        yield server


def opened(server: HttpServer, sent: bytes = b"") -> socket.socket:
    """Open a connection and send some bytes."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    sock.sendall(sent)
    return sock


async def received(sock: socket.socket) -> bytes:
    """Return what arrives until the server closes the connection."""

    def read() -> bytes:
        data = b""
        try:
            while part := sock.recv(65536):
                data += part
        except ConnectionResetError:
            pass
        return data

    with sock:
        return await anyio.to_thread.run_sync(read)


async def first_line(sock: socket.socket) -> bytes:
    """Return the first line of an answer."""
    with sock:
        return await anyio.to_thread.run_sync(sock.makefile("rb").readline)


def call(server: HttpServer, name: str, **arguments: object) -> bytes:
    """Return the bytes of a call."""
    message = request("tools/call", {"name": name, "arguments": arguments})
    body = json.dumps(message).encode()
    lines = {"Host": f"127.0.0.1:{server.port}", "Content-Length": str(len(body)), **ALICE}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**headers_of(message), **lines}.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


@pytest.mark.promise("mcp:http:header_time")
@pytest.mark.parametrize(
    "sent", [b"", b"POST /mcp HT", b"POST /mcp HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "line", "headers"]
)
async def test_a_connection_whose_headers_do_not_arrive_is_closed(
    server: HttpServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_servers, "HEADER_SECONDS", 0.0)
    with anyio.fail_after(60):
        assert await received(opened(server, sent)) == b""


@pytest.mark.promise("mcp:http:header_time")
async def test_a_running_call_is_not_limited_by_the_time_for_headers_but_its_next_request_is(
    server: HttpServer, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with httpx2.AsyncClient(timeout=60) as http:
        message = request("tools/call", {"name": "session_start", "arguments": {}})
        started = await post(http, server.url, message, ALICE)
    session = started.json()["result"]["structuredContent"]["session"]
    with anyio.fail_after(60):
        sock = opened(server, call(server, "counter_wait", session=session) + b"POST /mcp HTTP/1.1\r\n")
        await counter.entered.wait()
        monkeypatch.setattr(_servers, "HEADER_SECONDS", 0.0)
        monkeypatch.setattr(_servers, "IDLE_SECONDS", 0.0)
        assert await received(opened(server)) == b""
        counter.release.set()
        answer = await received(sock)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.promise("mcp:http:unidentified")
async def test_connections_without_a_request_give_way_to_new_ones_that_never_had_a_token_first(
    server: HttpServer, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_servers, "QUIET_SECONDS", 0.0)
    server.connections.limit = 4
    with anyio.fail_after(60):
        async with httpx2.AsyncClient(timeout=60) as http:
            started = await post(http, server.url, request("tools/list"), ALICE)
            assert started.status_code == 200
            silent = [opened(server, b"POST /mcp HT") for _ in range(3)]
            while len(server.connections) < 4:
                await anyio.lowlevel.checkpoint()
            again = await post(http, server.url, request("tools/list"), ALICE)
            newer = opened(server, call(server, "session_start"))
            answers = [await received(sock) for sock in silent[:1]]
            assert answers == [b""]
            assert await first_line(newer) == b"HTTP/1.1 200 OK\r\n"
            # The connection that sent a token is still open.
            local = started.extensions["network_stream"].get_extra_info("client_addr")
            assert again.extensions["network_stream"].get_extra_info("client_addr") == local
    for sock in silent[1:]:
        sock.close()
