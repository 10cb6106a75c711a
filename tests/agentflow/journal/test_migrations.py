"""The tables' steps."""

import pytest
from sqlalchemy import Connection, inspect, text

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import RunStopped
from agentflow.journal import open_journal
from agentflow.journal._database import METADATA, MIGRATIONS, JournalDatabase, backend_for, migrate


def tables(connection: Connection) -> dict[str, set[str]]:
    """The columns of every table."""
    found = inspect(connection)
    return {name: {column["name"] for column in found.get_columns(name)} for name in found.get_table_names()}


@pytest.mark.promise("journal:version")
async def test_migrations_lead_to_the_current_tables(url: str) -> None:
    async with open_journal(url):
        pass
    database = JournalDatabase(backend_for(url), 1, SYSTEM_CLOCK)
    found = await database.read(tables)
    await database.close()
    assert found == {
        table.name: {column.name for column in table.columns} for table in METADATA.sorted_tables
    }


@pytest.mark.promise("journal:version")
async def test_a_new_migration_runs_once_and_keeps_the_data(url: str) -> None:
    async with open_journal(url) as journal:
        key = (await journal.open_run("run", {"a": 1})).key
    done: list[str] = []

    def add_column(connection: Connection) -> None:
        done.append("add_column")
        connection.execute(text("ALTER TABLE agentflow_runs ADD COLUMN note TEXT"))

    database = JournalDatabase(backend_for(url), 1, SYSTEM_CLOCK)
    for _ in range(2):
        await migrate(database, [*MIGRATIONS, add_column])
    found = await database.read(tables)
    await database.close()
    assert done == ["add_column"]
    assert "note" in found["agentflow_runs"]
    assert key


@pytest.mark.promise("journal:version")
async def test_a_failed_migration_changes_nothing(url: str) -> None:
    def half(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE agentflow_half (id INTEGER)"))
        connection.execute(text("CREATE TABLE agentflow_half (id INTEGER)"))

    database = JournalDatabase(backend_for(url), 1, SYSTEM_CLOCK)
    with pytest.raises(RunStopped, match="already exists"):
        await migrate(database, [*MIGRATIONS, half])
    await migrate(database)
    found = await database.read(tables)
    await database.close()
    assert "agentflow_half" not in found
