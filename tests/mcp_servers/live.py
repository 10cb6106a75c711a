"""Sessions with bash, code and files on the real process runtime, for the tests of those backends."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

import pytest

from mcp_servers import Image, ToolResult, ToolTable
from mcp_servers.bash import BashBackend
from mcp_servers.code import CodeBackend
from mcp_servers.files import FilesBackend
from runtimes import InstanceSpec, Limits, Runtime
from runtimes.process import ProcessRuntime

__all__ = ["Live", "live", "runtime"]


@dataclass(frozen=True)
class Live:
    """One session of a table, with shortcuts to call its tools."""

    table: ToolTable
    session: str

    async def call(self, name: str, **arguments: object) -> ToolResult:
        """Call a tool in this session."""
        return await self.table.call(name, {"session": self.session, **arguments})

    async def data(self, name: str, **arguments: object) -> dict[str, object]:
        """Return the data of a call that must succeed."""
        result = await self.call(name, **arguments)
        assert result.ok, result
        return result.data

    async def failure(self, name: str, **arguments: object) -> tuple[str, str]:
        """Return the kind and message of a call that must fail."""
        result = await self.call(name, **arguments)
        assert result.error is not None, result
        return result.error.kind.value, result.error.message

    async def bash(self, command: str) -> str:
        """Return the output of a command."""
        data = await self.data("bash_run", command=command)
        assert data["exit_code"] == 0, data
        return str(data["stdout"])

    async def python(self, code: str) -> object:
        """Return the value of code."""
        data = await self.data("code_run", code=code)
        assert data["error"] is None, data
        return data["value"]

    async def fork(self) -> "Live":
        """Return a fork of this session."""
        data = await self.data("session_fork")
        return Live(self.table, str(data["session"]))


def images(result: ToolResult) -> list[Image]:
    """Return the images that a result shows."""
    return [part for part in result.parts if isinstance(part, Image)]


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Runtime]:
    # Normal priority: some of these programs have short time limits.
    async with ProcessRuntime(idle=False) as running:
        yield running


@pytest.fixture
async def live(runtime: Runtime) -> AsyncGenerator[Live]:
    async def get_runtime() -> Runtime:
        return runtime

    spec = InstanceSpec(limits=Limits(wall_seconds=30))
    async with ToolTable(
        [BashBackend(), CodeBackend(), FilesBackend()], runtime=get_runtime, spec=spec
    ) as table:
        started = await table.call("session_start")
        yield Live(table, str(started.data["session"]))
