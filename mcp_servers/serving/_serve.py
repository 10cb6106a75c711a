"""Runs a server as its settings say, until a signal or the client ends it."""

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import anyio

from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._runtime_choice import runtime_maker
from mcp_servers.core._runtime_host import RuntimeHost
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._settings import NO_TOKEN, ServerSettings
from mcp_servers.serving._tables import Made, make_table
from mcp_servers.serving._token_file import made_token, token_path

__all__ = ["serve"]

OWNER = "owner"
"""Whose the token is when there is only one."""


async def serve(settings: ServerSettings, http: bool) -> None:
    """Serve over HTTP, or to one client on standard input and output.

    :raises AgentFlowError: if it can't be done, in one line.
    """
    failure: AgentFlowError | None = None
    runtime = RuntimeHost(runtime_maker(settings.runtime, settings.sessions.spec()))
    async with anyio.create_task_group() as group:
        group.start_soon(runtime.run)
        try:
            made = make_table(settings, runtime, ToolTable)
            try:
                if not http and settings.workers > 1:
                    raise ConfigurationError("workers share a port: add --http, or leave workers out")
                if http:
                    await _serve_http(made, settings)
                else:
                    await made.table.start(made.warmup)
                    await _serve_stdio(made.table)
            finally:
                await made.table.close()
        except AgentFlowError as error:
            failure = error
        finally:
            runtime.close()
    if failure is not None:
        raise failure


async def _serve_stdio(table: ToolTable) -> None:
    from mcp_servers.serving._stdio import (
        serve_stdio,  # loads the SDK, which wrong settings need not wait for
    )

    with anyio.CancelScope() as scope:
        await _until_signal(lambda: serve_stdio(table), scope.cancel)


async def _serve_http(made: Made[ToolTable], settings: ServerSettings) -> None:
    # Both load the SDK, which wrong settings need not wait for.
    from mcp_servers.serving._http import HttpServer, Port
    from mcp_servers.serving._workers import Workers

    with ExitStack() as stack:
        listener = HttpServer.listen(settings.host, settings.port)
        stack.enter_context(listener)
        tokens = _tokens(settings, stack, listener.getsockname()[1])
        options = settings.http_options(tokens)
        server = (
            HttpServer(made.table, options, listener)
            if settings.workers == 1
            else Port(Workers(settings, [*made.table.backends]), options, listener)
        )

        def ready() -> None:
            _say(f"serving {', '.join(settings.backends)} at {server.url}")

        await _until_signal(lambda: server.serve(ready, made.warmup), server.stop)


def _tokens(settings: ServerSettings, stack: ExitStack, port: int) -> dict[str, str] | None:
    """The token of each client; one that is made is kept in a file while the server runs."""
    tokens = settings.client_tokens()
    token = settings.token.get_secret_value() if settings.token else None
    if token == NO_TOKEN:
        return None
    if token:
        tokens[OWNER] = token
    if not tokens:
        path = token_path(port)
        tokens[OWNER] = stack.enter_context(made_token(path))
        _say(f"the token is in {path}")
    return tokens


async def _until_signal(work: Callable[[], Awaitable[None]], stop: Callable[[], object]) -> None:
    """Do the work; a signal asks it to stop, a second one makes it."""
    failure: AgentFlowError | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                await anext(signals)
                stop()
                await anext(signals)
                group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            await work()
        except AgentFlowError as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _say(text: str) -> None:
    """Tell the person who started the server; standard output may be the protocol's."""
    sys.stderr.write(f"mcp_servers: {text}\n")
    sys.stderr.flush()
