"""One core behind every server: connections are accepted a few at a time, and those that are not read end."""

import asyncio
import os
import re
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from anyio.lowlevel import checkpoint

from agentflow.http_server import ACCEPTED_AT_ONCE, Connections, LimitedConnection, serving
from tests.behaviour._tree import name, source_modules
from tests.mcp_servers._now import Now

WAITING = 100
SERVERS = re.compile(r"AppRunner\(|uvicorn\.Server|HTTPServer\(|[._](?:start|create)(?:_unix)?_server\(")
LIMITED = {
    "agentflow/http_server/_servers.py",
    # The front of several workers, with the same `Connections`.
    "mcp_servers/serving/_workers.py",
    # The proxy of a sandbox, on the sandbox's loopback interface, with limits of its own.
    "runtimes/egress/_proxy.py",
    # A listener that the sandbox's proxy accepts from.
    "runtimes/process/trusted/_namespaces.py",
    # A program inside a remote sandbox, of the standard library only.
    "runtimes/remote/inside/_sandbox_server.py",
    # The model that tests and examples call.
    "agentflow/testing/endpoint/__main__.py",
}
"""Modules that make servers."""


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


async def test_one_turn_of_the_event_loop_accepts_few_of_the_connections_that_wait() -> None:
    async with serving(web.Application()) as url:
        address = urlsplit(url)
        with ExitStack() as stack:
            clients: list[socket.socket] = []
            for _ in range(WAITING):
                # The event loop does not run meanwhile: the connections wait in the queue of the socket.
                client = socket.create_connection((address.hostname, address.port), timeout=5)
                clients.append(stack.enter_context(client))
            before = descriptors()
            await checkpoint()
            await checkpoint()
            assert 0 < descriptors() - before <= 2 * (ACCEPTED_AT_ONCE + 1)
            for client in clients:
                client.setblocking(False)
                client.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert await asyncio.get_running_loop().sock_recv(client, 12) == b"HTTP/1.1 404"


def test_no_other_module_makes_a_server() -> None:
    assert {name(path) for path in source_modules() if SERVERS.search(path.read_text("utf-8"))} == LIMITED


class Stalling(asyncio.Protocol):
    """Transport and protocol of a client that reads nothing."""

    def __init__(self) -> None:
        self.aborted = False
        self._socket = socket.socket()

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 9) if name == "peername" else self._socket

    def abort(self) -> None:
        self.aborted = True
        self._socket.close()


@pytest.mark.promise("http_server:half")
def test_a_connection_that_reads_nothing_of_its_answer_ends_after_two_minutes() -> None:
    now = Now()
    connections = Connections(8, clock=now)
    transport = Stalling()
    connection = LimitedConnection(connections, asyncio.Protocol)
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.pause_writing()
    now.seconds = 119.0
    connection.resume_writing()
    connection.pause_writing()
    connections.begin_answer(connection.peer)
    now.seconds += 119.0
    assert connections.expire() == 0
    now.seconds += 2.0
    assert connections.expire() == 1
    assert transport.aborted
