"""Reading a journal from many threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import Connection, text

from agentflow.journal import open_journal, open_reader

THREADS = 12
"""More than a pool of connections keeps."""


@pytest.mark.promise("journal:reader-threads")
async def test_a_slow_query_is_undisturbed_by_those_of_other_threads(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        await journal.open_run("own", {})
    others = Event()

    def slowly(connection: Connection) -> object:
        assert connection.scalar(text("select 1")) == 1
        assert others.wait(60)
        return connection.scalar(text("select 2"))

    with open_reader(tmp_path / "journal.db") as reader, ThreadPoolExecutor(THREADS + 1) as pool:
        slow = pool.submit(reader.read, slowly)
        try:
            found = [pool.submit(reader.runs) for _ in range(THREADS)]
            names = [each.result()[0].name for each in found]
        finally:
            others.set()
        assert slow.result() == 2
    assert names == ["own"] * THREADS
