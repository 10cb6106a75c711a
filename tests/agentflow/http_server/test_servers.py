"""Connections that wait are accepted a few at a time."""

import asyncio
import os
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

from aiohttp import web
from anyio.lowlevel import checkpoint

from agentflow.http_server import ACCEPTED_AT_ONCE, serving

WAITING = 100


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
