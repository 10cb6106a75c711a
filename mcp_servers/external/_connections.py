"""Connections to external servers: a command on this machine or in a sandbox, or a URL."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import anyio
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from mcp_servers.external._pipes import Pipes, command_pipes
from mcp_servers.external._settings import MountSettings
from mcp_servers.external._transport import MAX_MESSAGE_BYTES, PipeTransport, pipe_streams
from runtimes import WORKSPACE, Instance

CONNECT_SECONDS = 10.0


class ServerConnection:
    """An open connection to a server."""

    def __init__(
        self, streams: TransportStreams, transport: PipeTransport | None = None, pipes: Pipes | None = None
    ) -> None:
        self.streams = streams
        """The streams for the SDK's client."""
        self._talk = transport
        self._pipes = pipes
        self._cut = anyio.Event()
        self._reason = ""

    def cut(self, reason: str) -> None:
        """Mark the connection as broken."""
        self._reason = self._reason or reason
        self._cut.set()

    async def ended(self) -> str:
        """Wait for the end of the connection and return the reason."""
        async with anyio.create_task_group() as group:
            if self._talk is not None and self._pipes is not None:
                group.start_soon(self._watch, self._talk, self._pipes)
            await self._cut.wait()
            group.cancel_scope.cancel()
        return self._reason

    async def _watch(self, transport: PipeTransport, pipes: Pipes) -> None:
        await transport.over.wait()
        how = transport.trouble
        if not how:
            # Its output ends shortly before the process does.
            with anyio.move_on_after(2):
                status = await pipes.wait()
                how = f"it ended with signal {-status}" if status < 0 else f"it ended with status {status}"
        words = " / ".join(transport.last_stderr_lines)
        self.cut((how or "it closed its output") + (f"; it said: {words}" if words else ""))


Connector: TypeAlias = Callable[[], AbstractAsyncContextManager[ServerConnection]]
"""Opens a new connection."""


@asynccontextmanager
async def connect(
    name: str,
    settings: MountSettings,
    folder: Path | None,
    sandbox: Callable[[AsyncExitStack], Awaitable[Instance]],
) -> AsyncGenerator[ServerConnection]:
    """Open a connection to a server at a URL, or start its command on this machine or in a sandbox.

    :param folder: workspace of a command on this machine.
    :param sandbox: returns the instance for a command in a sandbox and pushes its cleanup on the stack.
    """
    async with AsyncExitStack() as stack:
        if settings.url is not None:
            headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
            timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            streams = await stack.enter_async_context(
                streamable_http_client(settings.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES)
            )
            yield ServerConnection(streams)
            return
        if settings.runtime is None:
            command, env = _filled(settings, str(folder or ""))
            env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", **env}
            running = command_pipes(command, env=env, cwd=settings.cwd or folder)
        else:
            instance = await sandbox(stack)
            command, env = _filled(settings, WORKSPACE)
            cwd = None if settings.cwd is None else str(settings.cwd)
            running = await instance.open_stream(command, cwd=cwd, env=env)
        pipes = await stack.enter_async_context(running)
        transport = PipeTransport(name, pipes)
        yield ServerConnection(await stack.enter_async_context(pipe_streams(transport)), transport, pipes)


def _filled(settings: MountSettings, workspace: str) -> tuple[list[str], Mapping[str, str]]:
    """Return the command and its environment with the workspace path filled in."""
    command = [word.replace("{workspace}", workspace) for word in (*settings.command, *settings.args)]
    env = {
        key: value.get_secret_value().replace("{workspace}", workspace) for key, value in settings.env.items()
    }
    return command, env
