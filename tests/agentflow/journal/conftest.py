"""Every test of the journal runs on both databases, unless it is about one of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentflow.journal import Journal, Run, open_journal
from tests._postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty journal."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    server: object = request.getfixturevalue("postgres")
    assert isinstance(server, PostgresServer)
    return server.new_database()


@pytest.fixture
async def journal(url: str) -> AsyncIterator[Journal]:
    """An open journal."""
    async with open_journal(url) as journal:
        yield journal


@pytest.fixture
async def run(journal: Journal) -> Run:
    """A run in it."""
    return await journal.open_run("run", {"depth": 5})
