"""Fixtures: one browser and site for the package, and one session per test."""

from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from mcp_servers import ToolTable
from runtimes import Runtime
from runtimes.process import ProcessRuntime
from tests.mcp_servers.browser._browsing import Browsing, browsing_table, new_session
from tests.mcp_servers.browser._site import Site, site


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Runtime]:
    async with ProcessRuntime() as running:
        yield running


@pytest.fixture(scope="module", name="site")
async def the_site(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Site]:
    async with site() as server:
        yield server


@pytest.fixture(scope="module")
async def browsers(site: Site, runtime: Runtime) -> AsyncGenerator[ToolTable]:
    async with browsing_table(site, runtime) as table:
        yield table


@pytest.fixture
async def browsing(browsers: ToolTable, site: Site) -> AsyncGenerator[Browsing]:
    session = await new_session(browsers, site)
    yield session
    await session.end()
