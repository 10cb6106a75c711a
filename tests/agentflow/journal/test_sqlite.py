"""What is SQLite's own."""

from pathlib import Path

import pytest
from sqlalchemy import URL, Connection

from agentflow.actors import SYSTEM_CLOCK
from agentflow.journal._backend import EntryRow
from agentflow.journal._database import Database
from agentflow.journal._migrations import migrate
from agentflow.journal._sqlite import Sqlite

FULL, NORMAL = 2, 1


def level(connection: Connection) -> int:
    """How much the end of the transaction is worth."""
    return int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())


@pytest.mark.promise("journal:durable")
async def test_only_a_durable_transaction_waits_for_the_disk(tmp_path: Path) -> None:
    backend = Sqlite(URL.create("sqlite", database=str(tmp_path / "journal.db")))
    database = Database(backend, 1, SYSTEM_CLOCK)
    await migrate(database)
    assert await database.write(level) == NORMAL
    assert await database.write(level, durable=True) == FULL
    assert await database.write(level, durable=True) == FULL
    assert await database.write(level) == NORMAL
    await database.write(level, durable=True)
    assert await database.insert([EntryRow(1, 0, "key", 1, b"no such seed", 0)]) == 0
    assert await backend._writer.do(level) == NORMAL  # pyright: ignore[reportPrivateUsage]
    await database.close()
