"""What is SQLite's own."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from agentflow.actors import SYSTEM_CLOCK
from agentflow.journal._backend import EntryRow
from agentflow.journal._database import Database, backend_for
from agentflow.journal._migrations import migrate

FULL, NORMAL = 2, 1


async def level(connection: AsyncConnection) -> int:
    """How much the end of the transaction is worth."""
    return int((await connection.exec_driver_sql("PRAGMA synchronous")).scalar_one())


@pytest.mark.promise("journal:durable")
async def test_only_a_durable_transaction_waits_for_the_disk(tmp_path: Path) -> None:
    database = Database(backend_for(tmp_path / "journal.db"), 1, SYSTEM_CLOCK)
    await migrate(database)
    assert await database.write(level) == NORMAL
    assert await database.write(level, durable=True) == FULL
    assert await database.write(level, durable=True) == FULL
    assert await database.write(level) == NORMAL
    await database.write(level, durable=True)
    assert await database.insert([EntryRow(1, 0, "key", 1, b"no such seed", 0)]) == 0
    writer = database._writing  # pyright: ignore[reportPrivateUsage]
    assert writer is not None
    assert await level(writer) == NORMAL
    await database.close()
