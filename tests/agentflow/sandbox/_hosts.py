"""The same sandbox on each host."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, TypeAlias

import anyio

from agentflow.sandbox import Backend, Sandbox
from mcp_servers import ToolTable
from mcp_servers.core._runtimes import RuntimeHost, process_runtime
from mcp_servers.serving._http import HttpOptions, HttpServer
from runtimes import Runtime
from runtimes.process import ProcessRuntime

Host: TypeAlias = Literal["here", "server"]
HOSTS: tuple[Host, ...] = ("here", "server")
TOKEN = "sesame"


def eager_runtime() -> Runtime:
    """One in which a call's first second is enough for its first line, also where the rest of the suite runs beside it."""
    return ProcessRuntime(preload=(), idle=False)


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
async def serving(
    *backends: Backend, port: int = 0, make: Callable[[], Runtime] = process_runtime
) -> AsyncGenerator[Serving]:
    """Serve the backends over HTTP."""
    runtime = RuntimeHost(make)
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
async def opened(
    host: Host, *backends: Backend, timeout: float | None = None, make: Callable[[], Runtime] | None = None
) -> AsyncGenerator[Sandbox]:
    """A sandbox over the backends, behind that host; by default in a runtime like anybody's."""
    async with AsyncExitStack() as stack:
        if host == "here":
            runtime = await stack.enter_async_context(make()) if make else None
            sandbox = Sandbox(backends=backends, timeout=timeout, runtime=runtime)
        else:
            server = await stack.enter_async_context(serving(*backends, make=make or process_runtime))
            sandbox = Sandbox(server.url, token=TOKEN, timeout=timeout)
        yield await stack.enter_async_context(sandbox)
