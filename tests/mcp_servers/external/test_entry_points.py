"""Mounted servers behind our servers, and their end when those die."""

import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import mcp_types as types
import psutil
import pytest

from agentflow.sandbox import Sandbox
from mcp_servers import HttpOptions, ToolTable
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._program import Program, program
from tests.mcp_servers._serving import connected, serving
from tests.mcp_servers.external._mounting import bad, mounting, server_settings


@asynccontextmanager
async def served(folder: Path) -> AsyncGenerator[tuple[Program, str]]:
    """Start one of our servers with a mounted server, and yield its URL."""
    config = folder / "server.json"
    # Nothing is warmed up explicitly; the tools must be known all the same.
    settings: dict[str, object] = {
        "backends": {"mcp": {"servers": {"bad": server_settings(bad(folder))}}},
        "warmup": [],
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    arguments = ("--http", "127.0.0.1:0", "--token", "none", "--config", str(config))
    async with program(*arguments) as running:
        while "serving" not in (line := await running.next_line()):
            continue
        yield running, line.split()[-1]


async def pid_of(url: str) -> int:
    """Return the process of the mounted server, as reported to a client."""
    async with connected(url) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "mcp_bad_pid" in names
        result = await client.call_tool("mcp_bad_pid", {})
        (answer,) = result.content
        assert isinstance(answer, types.TextContent)
        return int(answer.text)


@contextmanager
def kept_port() -> Generator[int]:
    """Reserve a port on which our servers can listen one after the other."""
    with socket.socket() as keeping:
        keeping.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeping.bind(("127.0.0.1", 0))
        yield keeping.getsockname()[1]


@pytest.mark.promise("external:served")
async def test_mounted_tools_are_served_to_any_client_and_to_a_remote_sandbox(tmp_path: Path) -> None:
    with anyio.fail_after(100):
        async with served(tmp_path) as (_, url):
            assert await pid_of(url) > 0
            async with Sandbox(url) as sandbox:
                assert (await sandbox.execute("mcp:bad.remember", {"word": "far"})).parts
                refused = await sandbox.execute("mcp:bad.big", {"size": "x"})
                assert refused.error is not None
                assert refused.error.kind == "bad_arguments"


@pytest.mark.promise("external:ends")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_mounted_command_ends_when_our_server_dies(tmp_path: Path, number: int) -> None:
    with anyio.fail_after(100):
        async with served(tmp_path) as (running, url):
            mounted = psutil.Process(await pid_of(url))
            os.kill(running.process.pid, number)
            await running.process.wait()
            await anyio.to_thread.run_sync(mounted.wait, 20)
            assert not mounted.is_running()


@pytest.mark.promise("external:restart")
async def test_a_server_at_a_url_may_disappear_and_return() -> None:
    with kept_port() as port:
        options = HttpOptions(port=port)
        async with (
            ToolTable([Counter()]) as table,
            serving(table, options) as server,
            mounting({"far": {"url": server.url}}) as mounted,
        ):
            assert (await mounted.call("far.counter_length", text="abc")).data == {"result": 3}
            server.stop()
            kind = ""
            while kind != "unavailable":
                result = await mounted.call("far.counter_length", text="abc")
                kind = "" if result.error is None else result.error.kind.value
            with anyio.fail_after(40):
                async with serving(table, options):
                    while not (await mounted.call("far.counter_length", text="abc")).ok:
                        await anyio.lowlevel.checkpoint()
