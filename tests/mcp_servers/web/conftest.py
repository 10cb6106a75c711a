"""A web of names for one test, and tools that a module shares."""

from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from mcp_servers.web._parsers import ParserPool
from tests.mcp_servers.web._services import Services, some_services
from tests.mcp_servers.web._site import Site, a_site
from tests.mcp_servers.web._tools import Web, web_tools


@pytest.fixture(scope="module")
async def parsers(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[ParserPool]:
    """The processes that parse, for all tests of a module."""
    pool = ParserPool(2)
    yield pool
    await pool.close()


@pytest.fixture
async def site(parsers: ParserPool) -> AsyncGenerator[Site]:
    """A web that only this test has."""
    async with a_site(parsers) as web:
        yield web


@pytest.fixture(scope="module")
async def shared_site(parsers: ParserPool) -> AsyncGenerator[Site]:
    """A web that the tests of a module share: each uses hosts of its own."""
    async with a_site(parsers) as web:
        yield web


@pytest.fixture(scope="module")
async def shared_web(shared_site: Site) -> AsyncGenerator[Web]:
    """Tools without any settings in that web."""
    async with web_tools(shared_site) as web:
        yield web


@pytest.fixture
async def services() -> AsyncGenerator[Services]:
    """Search engines, Jina, a model and Wikipedia."""
    async with some_services() as running:
        yield running
