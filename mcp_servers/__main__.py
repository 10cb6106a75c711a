"""The command line: `python -m mcp_servers BACKEND... [--http HOST:PORT] [--token TOKEN|none] [--config FILE]`.

With HTTP the server runs until a signal; on standard input and output also until the client closes it.
"""

import argparse
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec

import anyio

from agentflow._arguments import CommandParser
from agentflow._secrets import hide_arguments
from agentflow.errors import AgentFlowError, ConfigurationError, exit_report
from agentflow.settings import load_settings
from agentflow.telemetry import start_tracing
from mcp_servers.core._backend import BACKENDS
from mcp_servers.core._runtimes import RuntimeHost, runtime_maker
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._access import token_file, token_path
from mcp_servers.serving._client_profiles import ClientProfiles
from mcp_servers.serving._server_names import UNIX
from mcp_servers.serving._settings import NO_TOKEN, OWNER, ServerSettings, make_table, set_up_logging


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a server until it is stopped. Return the exit status: 0, 1 after a failure, 2 for invalid settings."""
    if arguments is None:
        hide_arguments(sys.argv)
    options = _parser().parse_intermixed_args(arguments)
    try:
        settings = load_settings(ServerSettings, options.config, _overrides(options))
        set_up_logging(settings.log_level)
        start_tracing(service="agentflow-tools")
        # Only for the proxy of several workers: virtual machines don't start under uvloop, which is an extra.
        uvloop = {"use_uvloop": settings.workers > 1 and find_spec("uvloop") is not None}
        anyio.run(serve, settings, _wants_http(options, settings), backend_options=uvloop)
    except BaseException as error:  # boundary: the user gets one line, whatever was raised
        # KeyboardInterrupt only before serving started; later, signals stop the server in order.
        report = exit_report(error)
        if report.message:
            _print_line(report.message)
        return report.status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m mcp_servers",
        description="Serve backends over MCP: on standard input and output, or over HTTP.",
        epilog=f"Backends: {', '.join(BACKENDS)}, or package.module:Class. "
        "An argument with '=' changes a setting: sessions.idle_seconds=600.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="BACKEND", help="a backend to serve besides the configured ones"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="serve streamable HTTP at this address, or at unix:/path"
    )
    parser.add_argument("--host", help="serve streamable HTTP on this address")
    parser.add_argument("--port", help="serve streamable HTTP on this port; 0: any free port")
    parser.add_argument("--workers", metavar="N", help="number of worker processes that share the port")
    parser.add_argument(
        "--token",
        help="the bearer token; 'none': no token (loopback only); default: a generated token; "
        "AGENTFLOW_SERVER_TOKEN gives it unseen by other users",
    )
    parser.add_argument(
        "--no-structured-content",
        action="store_true",
        help="send results as text and images only, for clients that drop images beside structuredContent",
    )
    parser.add_argument("--config", metavar="FILE", help="a configuration file, YAML or JSON")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    return parser


def _overrides(options: argparse.Namespace) -> list[str]:
    """Convert the command line to `key=value` settings."""
    words: list[str] = [word for word in options.words if "=" in word]
    # A mapping is merged with the file's, so that settings given there stay.
    words += [f"backends={{{word}: {{}}}}" for word in options.words if "=" not in word]
    if options.no_structured_content:
        words.append("client_profiles={'*': {structured: false}}")
    unix = options.http.removeprefix(UNIX) if options.http and options.http.startswith(UNIX) else None
    host, port = _address(options.http) if options.http and unix is None else (None, None)
    for key, value in (
        ("host", options.host or host),
        ("port", options.port or port),
        ("socket", unix),
        ("workers", options.workers),
        ("token", options.token),
        ("log_level", options.log_level),
    ):
        if value is not None:
            words.append(f"{key}={value}")
    return words


def _address(text: str) -> tuple[str | None, str | None]:
    """Split `HOST:PORT`, `HOST:`, `:PORT` or `PORT`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or None, port or None


def _wants_http(options: argparse.Namespace, settings: ServerSettings) -> bool:
    named = (options.http, options.host, options.port)
    fields = {"host", "port", "socket"}
    return any(value is not None for value in named) or bool(settings.model_fields_set & fields)


async def serve(settings: ServerSettings, http: bool) -> None:
    """Serve over HTTP, or one client on standard input and output.

    :raises AgentFlowError: with one line, if the server cannot start or fails.
    """
    failure: AgentFlowError | None = None
    runtime = RuntimeHost(runtime_maker(settings.runtime, settings.sessions.spec()))
    async with anyio.create_task_group() as group:
        group.start_soon(runtime.run)
        try:
            table, warmup = make_table(settings, runtime)
            try:
                if not http and settings.workers > 1:
                    raise ConfigurationError("workers need HTTP: add --http, or remove workers")
                if (archive := settings.sessions.files_kept()) is not None:
                    await archive.check()
                if http:
                    await _serve_http(table, warmup, settings)
                else:
                    await table.start(warmup)
                    await _serve_stdio(table, settings)
            finally:
                await table.close()
        except AgentFlowError as error:
            failure = error
        finally:
            runtime.close()
    if failure is not None:
        raise failure


async def _serve_stdio(table: ToolTable, settings: ServerSettings) -> None:
    # Loads the SDK, which invalid settings need not wait for.
    from mcp_servers.serving._stdio import serve_stdio

    profiles = ClientProfiles(settings.client_profiles)
    with anyio.CancelScope() as scope:
        try:
            await _until_signal(lambda: serve_stdio(table, profiles=profiles), scope.cancel)
        except* BrokenPipeError:
            pass  # the client has closed both ends, as it may at any time


async def _serve_http(table: ToolTable, warmup: Sequence[str], settings: ServerSettings) -> None:
    # Both load the SDK, which invalid settings need not wait for.
    from mcp_servers.serving._http import HttpServer, listen, listen_unix, public_address
    from mcp_servers.serving._workers import WorkerServer

    with ExitStack() as stack:
        path = settings.socket
        listener = listen(settings.host, settings.port) if path is None else listen_unix(path)
        stack.enter_context(listener)
        _, port = public_address(listener, settings.http_options(None))
        options = settings.http_options(_tokens(settings, stack, port))
        server: HttpServer | WorkerServer
        if settings.workers == 1:
            server = HttpServer(table, options, listener)
        else:
            server = WorkerServer(settings, warmup, options, listener)

        def ready() -> None:
            _print_line(f"serving {', '.join(settings.backends)} at {server.url if path is None else path}")

        serve = server.serve(ready, warmup) if isinstance(server, HttpServer) else server.serve(ready)
        await _until_signal(lambda: serve, server.stop)


def _tokens(settings: ServerSettings, stack: ExitStack, port: int) -> dict[str, str] | None:
    """Return the token of each client; a generated token is kept in a file while the server runs."""
    tokens = settings.client_tokens()
    token = settings.token.get_secret_value() if settings.token else None
    if token == NO_TOKEN:
        return None
    if token:
        tokens[OWNER] = token
    if not tokens:
        path = token_path(port)
        tokens[OWNER] = secrets.token_urlsafe(32)
        stack.enter_context(token_file(path, tokens[OWNER]))
        _print_line(f"the token is in {path}")
    return tokens


async def _until_signal(work: Callable[[], Awaitable[None]], stop: Callable[[], object]) -> None:
    """Run `work`; the first signal calls `stop`, the second cancels `work`."""
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


def _print_line(text: str) -> None:
    """Print to standard error, because standard output may carry the protocol."""
    # The client may be gone, and a name may hold bytes that are no text.
    with suppress(BrokenPipeError):
        sys.stderr.write(f"mcp_servers: {text}\n".encode("utf-8", "backslashreplace").decode())
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
