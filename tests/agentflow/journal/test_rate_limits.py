"""Slots of rate limits that all processes of a database share."""

import anyio
import pytest

from agentflow.actors import SYSTEM_CLOCK
from agentflow.journal import open_journal
from agentflow.journal._database import JournalDatabase, backend_for, migrate, reserve_slot

INTERVAL = 1000.0
"""Seconds between slots, against which the time of a test is nothing."""
PROCESSES, SLOTS = 20, 5


@pytest.mark.promise("journal:rates")
async def test_many_processes_never_get_the_same_slot(url: str) -> None:
    async with open_journal(url) as journal:
        await journal.open_run("run", {})
    found: list[float] = []

    async def work(name: str) -> None:
        async with open_journal(url) as journal:
            run = await journal.open_run(name, {"name": name})
            found.extend([await run.reserve("a key of a model", INTERVAL) for _ in range(SLOTS)])

    async with anyio.create_task_group() as tasks:
        for number in range(PROCESSES):
            tasks.start_soon(work, f"run {number}")
    assert [round(seconds / INTERVAL) for seconds in sorted(found)] == [*range(PROCESSES * SLOTS)]
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        assert await run.reserve("another key", INTERVAL) == 0.0
        assert round(await run.reserve("a key of a model", INTERVAL) / INTERVAL) == PROCESSES * SLOTS


@pytest.mark.promise("journal:rates")
async def test_slots_move_with_a_clock_that_is_set_back(url: str) -> None:
    database = JournalDatabase(backend_for(url), 1, SYSTEM_CLOCK)
    await migrate(database)

    async def reserve(now: float) -> float:
        return await database.write(lambda connection: reserve_slot(connection, "key", now, 1.0))

    assert [await reserve(now) for now in (7200.0, 7200.0, 7199.0)] == [7200.0, 7201.0, 7202.0]
    assert [await reserve(now) for now in (3600.0, 3600.0)] == [3604.0, 3605.0]
    assert await reserve(7200.0) == 7200.0
    await database.close()
