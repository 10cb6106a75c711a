"""The inspector's command line as a client: it lists and calls tools over both transports, in both eras."""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from tests.conformance._node import INSPECTOR, ROOT, Ran, node, run_node
from tests.conformance.test_backends import BACKENDS, address, mounted
from tests.mcp_servers._program import program

TOKEN = "token-of-the-inspector"


async def over_http(folder: Path, era: str, *arguments: str) -> Ran:
    """Run the inspector against a server of all backends, with an external one mounted, over HTTP."""
    environment = {"AGENTFLOW_SERVER_TOKEN": TOKEN}
    async with program(*BACKENDS, mounted(), "--http", "127.0.0.1:0", environment=environment) as running:
        target = ("--server-url", f"{await address(running)}/mcp", "--transport", "http")
        header = ("--header", f"Authorization: Bearer {TOKEN}", "--protocol-era", era)
        return await run_node(INSPECTOR, "--cli", *target, *header, *arguments, folder=folder)


async def over_stdio(folder: Path, era: str, *arguments: str) -> Ran:
    """Run the inspector against a server of all backends, with an external one mounted, on standard input and output."""
    server = ("--", sys.executable, "-m", "mcp_servers", *BACKENDS, mounted())
    command = ("--cli", "--connect-timeout", "60000", "--protocol-era", era, *arguments, *server)
    return await run_node(INSPECTOR, *command, folder=folder, environment={"PYTHONPATH": str(ROOT)})


def answer(ran: Ran) -> dict[str, Any]:
    """Return the answer of a tool, after the server's own output."""
    return json.loads(ran.output[ran.output.index("{\n") :])


Transport: TypeAlias = Callable[..., Awaitable[Ran]]

TRANSPORTS = pytest.mark.parametrize("transport", [over_http, over_stdio])
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


@pytest.mark.promise("mcp:inspector:list")
@TRANSPORTS
@ERAS
async def test_tools_are_listed_without_an_error_in_any_schema(
    transport: Transport, era: str, tmp_path: Path
) -> None:
    node()
    with anyio.fail_after(110):
        ran = await transport(tmp_path, era, "--method", "tools/list", "--strict")
    assert ran.status == 0, ran.output[-5000:]
    for name in ("bash_run", "vm_click", "vm_evaluate", "mcp_everything_echo"):
        assert name in ran.output
    assert "Warning:" not in ran.output


@pytest.mark.promise("mcp:inspector:call")
@TRANSPORTS
@ERAS
async def test_a_tool_is_called(transport: Transport, era: str, tmp_path: Path) -> None:
    node()
    with anyio.fail_after(110):
        ran = await transport(tmp_path, era, "--method", "tools/call", "--tool-name", "session_list")
    assert ran.status == 0, ran.output[-5000:]
    assert answer(ran)["structuredContent"] == {"sessions": []}


@ERAS
async def test_a_command_runs_in_the_connection_s_own_sandbox(era: str, tmp_path: Path) -> None:
    node()
    call = ("--method", "tools/call", "--tool-name", "bash_run", "--tool-arg", "command=echo $((6 * 7))")
    with anyio.fail_after(110):
        ran = await over_stdio(tmp_path, era, *call)
    assert ran.status == 0, ran.output[-5000:]
    assert answer(ran)["structuredContent"]["stdout"] == "42\n"
