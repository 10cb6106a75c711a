"""Sessions with a desktop in the real process runtime."""

from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from mcp_servers import ToolTable
from mcp_servers.bash import BashBackend
from mcp_servers.vm import VmBackend
from runtimes import Machine, Runtime
from runtimes.process import ProcessRuntime
from tests.mcp_servers.live import Live
from tests.mcp_servers.vm._machines import machine_of


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Runtime]:
    async with ProcessRuntime(preload=(), idle=False) as running:
        yield running


@pytest.fixture(scope="module")
async def table(runtime: Runtime) -> AsyncGenerator[ToolTable]:
    async def get_runtime() -> Runtime:
        return runtime

    async with ToolTable([VmBackend(), BashBackend()], runtime=get_runtime) as table:
        yield table


@pytest.fixture(scope="module")
async def live(table: ToolTable) -> Live:
    """Session with a desktop shared by many tests."""
    started = await table.call("session_start", {"settings": {"vm": {"screen_size": [800, 600]}}})
    assert started.ok, started
    return Live(table, str(started.data["session"]))


@pytest.fixture
def machine(live: Live) -> Machine:
    """Machine of that session, for inspection."""
    return machine_of(live)
