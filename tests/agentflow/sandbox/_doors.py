"""The same sandbox behind each door."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import anyio

from agentflow.sandbox import Backend, Sandbox
from mcp_servers import ToolTable
from mcp_servers._http import HttpOptions, HttpServer
from mcp_servers._runtime_host import RuntimeHost

Door: TypeAlias = Literal["here", "server"]
DOORS: tuple[Door, ...] = ("here", "server")
TOKEN = "sesame"


class Serving:
    """A server that runs in this loop."""

    def __init__(self, server: HttpServer) -> None:
        self.url = server.url
        """Its address."""
        self.stop = server.stop
        """Stops it."""
        self.stopped = anyio.Event()
        """Set when it has stopped."""


@asynccontextmanager
async def cold(table: ToolTable) -> AsyncGenerator[ToolTable]:
    """The table with its backends started at first use, as in a sandbox in this process."""
    try:
        yield table
    finally:
        await table.close()


@asynccontextmanager
async def serving(*backends: Backend, port: int = 0) -> AsyncGenerator[Serving]:
    """Serve the backends over HTTP."""
    runtime = RuntimeHost()
    async with (
        anyio.create_task_group() as group,
        cold(ToolTable(backends, runtime=runtime.get)) as table,
    ):
        group.start_soon(runtime.run)
        options = HttpOptions(port=port, tokens={"me": TOKEN, "another": "knock"}, grace_seconds=0.5)
        server = HttpServer(table, options)
        running, ready = Serving(server), anyio.Event()

        async def serve() -> None:
            await server.serve(ready.set)
            running.stopped.set()

        group.start_soon(serve)
        await ready.wait()
        try:
            yield running
        finally:
            running.stop()
            with anyio.CancelScope(shield=True):
                await running.stopped.wait()
            runtime.close()


@asynccontextmanager
async def opened(door: Door, *backends: Backend, timeout: float | None = None) -> AsyncGenerator[Sandbox]:
    """A sandbox over the backends, behind that door."""
    if door == "here":
        async with Sandbox(backends=backends, timeout=timeout) as sandbox:
            yield sandbox
    else:
        async with (
            serving(*backends) as server,
            Sandbox(server.url, token=TOKEN, timeout=timeout) as sandbox,
        ):
            yield sandbox
