"""Connection to a server that can be cut while a call is in flight."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketStream


class Cable:
    """Carries bytes to a server and back."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.url = ""
        """URL of its near end."""
        self.cut_before = b""
        """A request that contains this is delivered, and then the connection is cut before the answer."""
        self.stalls = False
        """The connection stays open instead, and nothing more is carried back."""
        self.requests = 0
        """Number of delivered requests that contained `cut_before`."""

    async def carry(self, near: SocketStream) -> None:
        """Carry one connection."""
        host, port = self._target.hostname, self._target.port
        assert host
        assert port
        async with near, await anyio.connect_tcp(host, port) as far, anyio.create_task_group() as group:
            group.start_soon(self._back, far, near, group.cancel_scope)
            await self._there(near, far)
            group.cancel_scope.cancel()

    async def _there(self, near: ByteReceiveStream, far: ByteSendStream) -> None:
        # The server answers only for its own host name.
        here, there = (urlsplit(url).netloc.encode() for url in (self.url, self._target.geturl()))
        async for data in near:
            if self.cut_before and self.cut_before in data:
                self.requests += 1
            await far.send(data.replace(here, there))

    async def _back(
        self, far: ByteReceiveStream, near: ByteSendStream, connection: anyio.CancelScope
    ) -> None:
        async for data in far:
            if self.requests and self.stalls:
                continue
            if self.requests:
                connection.cancel()
                return
            await near.send(data)


@asynccontextmanager
async def cable_to(url: str) -> AsyncGenerator[Cable]:
    """Return a connection to the server at a URL."""
    cable = Cable(url)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    cable.url = f"http://127.0.0.1:{port}/mcp"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, cable.carry)
        yield cable
        group.cancel_scope.cancel()
