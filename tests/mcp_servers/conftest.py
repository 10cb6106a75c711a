"""A table with the counting backend, and clocks that are advanced by hand."""

from collections.abc import AsyncGenerator

import pytest

from mcp_servers import TableLimits, ToolTable
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._now import Now


@pytest.fixture
def counter() -> Counter:
    """A backend that needs no runtime."""
    return Counter()


@pytest.fixture
def now() -> Now:
    """A clock for idle time."""
    return Now()


@pytest.fixture
async def table(counter: Counter, now: Now) -> AsyncGenerator[ToolTable]:
    """A started table with the counter."""
    limits = TableLimits(sessions=4, idle_seconds=100.0, kept_bytes=64)
    async with ToolTable([counter], limits=limits, clock=now) as table:
        yield table
