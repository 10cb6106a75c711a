"""A whole server, from its start to the end of its processes."""

import signal
from contextlib import suppress
from typing import cast

import anyio
import psutil
import pytest
from mcp import Client, MCPError

from tests.mcp_servers._program import program
from tests.mcp_servers._serving import connected, request
from tests.mcp_servers.serving.test_command import address


async def gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that are still alive after their grace time."""
    _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=60))
    return alive


async def keep_busy(client: Client, ready: anyio.Event) -> None:
    """Start a session and an endless call in it, with a child that tries to outlive it."""
    started = await client.call_tool("session_start", {})
    assert started.structured_content is not None
    arguments = {
        "session": started.structured_content["session"],
        "command": "(setsid sleep 1000 &); echo ready; sleep 1000",
    }

    async def report(progress: float, total: float | None, message: str | None) -> None:
        ready.set()

    # A killed server breaks the connection; a stopping one answers that the session has ended.
    with suppress(MCPError):
        await client.call_tool("bash_run", arguments, progress_callback=report)


@pytest.mark.promise("mcp:server:end")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_no_sandbox_outlives_its_server(number: signal.Signals) -> None:
    environment = {"AGENTFLOW_SERVER_TOKEN": "given"}
    with anyio.fail_after(100):
        async with program(
            "bash", "--http", "127.0.0.1:0", "grace_seconds=0.2", environment=environment
        ) as running:
            url = await address(running)
            async with connected(url, "given") as client, anyio.create_task_group() as group:
                for _ in range(2):
                    ready = anyio.Event()
                    group.start_soon(keep_busy, client, ready)
                    await ready.wait()
                processes = psutil.Process(running.process.pid).children(recursive=True)
                assert processes
                running.process.send_signal(number)
                status = await running.process.wait()
                assert status == (-signal.SIGKILL if number is signal.SIGKILL else 0)
                assert await gone(processes) == []
                group.cancel_scope.cancel()


async def test_a_stdio_client_that_disconnects_ends_its_sandbox() -> None:
    arguments = {"command": "echo ready; sleep 1000"}
    call = request("tools/call", {"name": "bash_run", "arguments": arguments})
    meta = cast("dict[str, dict[str, object]]", call["params"])["_meta"]
    meta["progressToken"] = "p"
    with anyio.fail_after(100):
        async with program("bash") as running:
            await running.send(call)
            assert (await running.answer())["method"] == "notifications/progress"
            processes = psutil.Process(running.process.pid).children(recursive=True)
            assert processes
            await running.stdin.aclose()
            assert await running.process.wait() == 0
            assert await gone(processes) == []
