"""`agentflow view`: serve a page about runs until Ctrl-C, on this machine or through ssh on the machine that has them."""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from threading import Thread
from typing import Final, NamedTuple

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from agentflow._decoding import DECODE_ERRORS
from agentflow.cli._display import set_up_logging
from agentflow.cli._output import Exit
from agentflow.dashboard import ServedView, open_view
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.inspection import RunCollection, open_runs
from agentflow.telemetry import Level

_LOOPBACK: Final = "127.0.0.1"
_SSH: Final = "ssh://"
_NO_PROGRAM: Final = 127
_SSH_FAILED: Final = 255
_LAST_SECONDS: Final = 5.0
_MAX_LINE: Final = 1 << 16


class PrintedLink(msgspec.Struct, frozen=True):
    """Line of `agentflow view --json`."""

    url: str
    """Address without a path."""
    link: str
    """Link that opens one browser."""
    pid: int
    """Process that serves it."""


def run_view(arguments: argparse.Namespace) -> int:
    """Serve the page and return the exit status.

    :raises AgentFlowError: one line, if it can't be served.
    """
    if arguments.place.startswith(_SSH):
        remote = _remote(arguments.place, arguments.journal)
        port = arguments.port or _free_port()
        return anyio.run(
            _forward, remote, port, arguments.remote_command, _opener(not arguments.no_open), arguments.json
        )
    return view_runs(
        arguments.place,
        journal=arguments.journal,
        port=arguments.port,
        opens=not arguments.no_open,
        as_json=arguments.json,
        until_eof=arguments.until_eof,
    )


def view_runs(
    location: str,
    *,
    journal: str = "",
    port: int = 0,
    opens: bool = True,
    as_json: bool = False,
    until_eof: bool = False,
) -> int:
    """Serve a page about the runs of a place until Ctrl-C, and open it in a browser if there is one.

    :param journal: database that the settings of the runs may name.
    :param until_eof: end with standard input, too.
    :raises AgentFlowError: one line, if it can't be served.
    """
    set_up_logging(Level.WARNING)
    with open_runs(location, journal=journal) as runs:
        summaries = runs.runs()
        path = f"/r/{summaries[0].id}" if len(summaries) == 1 else "/"
        return anyio.run(_serve, runs, path, port, _opener(opens), as_json, until_eof)


async def _serve(
    runs: RunCollection,
    path: str,
    port: int,
    open_link: Callable[[str], None] | None,
    as_json: bool,
    until_eof: bool,
) -> int:
    def show(view: ServedView) -> None:
        _print(PrintedLink(view.url, view.link(path), os.getpid()), as_json)

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_view(runs, port=port, on_used=show) as view, anyio.create_task_group() as tasks:
            show(view)
            if open_link is not None:
                open_link(view.link(path))
            if until_eof:
                tasks.start_soon(_end_with_input, tasks.cancel_scope)
            async for _ in signals:
                tasks.cancel_scope.cancel()
                break
    return Exit.DONE


def _print(link: PrintedLink, as_json: bool) -> None:
    sys.stdout.write((msgspec.json.encode(link).decode() if as_json else f"view: {link.link}") + "\n")
    sys.stdout.flush()


async def _end_with_input(scope: anyio.CancelScope) -> None:
    """Cancel a scope at the end of standard input."""
    descriptor = sys.stdin.fileno()
    while True:
        # A file can be read at any time, but not be waited for.
        with suppress(PermissionError):
            await anyio.wait_readable(descriptor)
        if not os.read(descriptor, _MAX_LINE):
            return scope.cancel()


class _RemotePlace(NamedTuple):
    """Place on another machine."""

    shown: str
    """As it was given."""
    machine: str
    """`ssh://[USER@]HOST[:PORT]`, which ssh reads."""
    path: str
    """Path there."""
    journal: str
    """Database that the settings of its runs may name."""


def _remote(location: str, journal: str) -> _RemotePlace:
    """Read `ssh://[USER@]HOST[:PORT]/PATH`; `/~/` begins at the home directory.

    :raises ConfigurationError: one line, if it names no machine.
    """
    machine, _, path = location.removeprefix(_SSH).partition("/")
    user, _, host = machine.rpartition("@")
    if not host or ":" in user:
        raise ConfigurationError(
            f"{location}: name a machine: ssh://[USER@]HOST[:PORT]/PATH, without a password"
        )
    # ssh begins at the home directory.
    inner = path.removeprefix("~").lstrip("/") if path.startswith("~") else f"/{path}"
    return _RemotePlace(location, f"{_SSH}{machine}", inner if path and inner else ".", journal)


async def _forward(
    remote: _RemotePlace, port: int, command: str, open_link: Callable[[str], None] | None, as_json: bool
) -> int:
    """Run the viewer on another machine, with its port forwarded to the same one of this machine, until Ctrl-C."""
    journal = f" --journal={shlex.quote(remote.journal)}" if remote.journal else ""
    words = [
        "ssh",
        *("-T", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15"),
        *("-L", f"{_LOOPBACK}:{port}:{_LOOPBACK}:{port}"),
        *("--", remote.machine),
        # The viewer ends with its input: it is closed however ssh ends.
        f"exec {command} view {shlex.quote(remote.path)} --port {port} --no-open --json --until-eof{journal}",
    ]
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            process = await anyio.open_process(words, stdin=subprocess.PIPE, stderr=None)
        except OSError as error:
            raise ConfigurationError(f"{remote.shown}: ssh can't be started: {error.strerror}") from None
        is_interrupted = anyio.Event()
        async with process:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_after_signal, signals, process, is_interrupted)
                await _print_links(process, port, open_link, as_json)
                await process.wait()
                tasks.cancel_scope.cancel()
            status = await process.wait()
    if is_interrupted.is_set():
        return Exit.DONE
    if status == _SSH_FAILED:
        raise AgentFlowError(f"{remote.shown}: no connection, or it was lost")
    if status == _NO_PROGRAM:
        raise ConfigurationError(
            f"{remote.shown}: there is no program {command!r} there; name it with --command"
        )
    return status


async def _end_after_signal(
    signals: AsyncIterator[signal.Signals], process: anyio.abc.Process, is_interrupted: anyio.Event
) -> None:
    await anext(signals)
    is_interrupted.set()
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(_LAST_SECONDS):
        await process.wait()
    with suppress(ProcessLookupError):
        process.terminate()


async def _print_links(
    process: anyio.abc.Process, port: int, open_link: Callable[[str], None] | None, as_json: bool
) -> None:
    """Print the links of the viewer on the other machine until it ends, and open the first."""
    assert process.stdout is not None
    lines = BufferedByteReceiveStream(process.stdout)
    with suppress(
        anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError
    ):
        while True:
            line = await lines.receive_until(b"\n", _MAX_LINE)
            try:
                link = msgspec.json.decode(line, type=PrintedLink)
            except DECODE_ERRORS:
                # A shell may greet first.
                continue
            # Only what is forwarded is opened here.
            if link.link.startswith(f"http://{_LOOPBACK}:{port}/"):
                _print(link, as_json)
                if open_link is not None:
                    open_link(link.link)
                    open_link = None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


def _opener(opens: bool) -> Callable[[str], None] | None:
    """Return a function that opens a link; `None`: it is not wanted, or there is no browser."""
    if not opens or not _has_browser():
        return None
    # Some browsers block their caller until they are closed.
    return lambda link: Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def _has_browser() -> bool:
    """Return whether a window can open; a browser for terminals would take this one."""
    windows = sys.platform in ("darwin", "win32")
    return windows or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
