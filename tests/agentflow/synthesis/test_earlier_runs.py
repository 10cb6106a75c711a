"""Runs whose records are those of an earlier version: they can be viewed and exported, and not be resumed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentflow import asynthesize
from agentflow.errors import ConfigurationError
from agentflow.exports import export_run

SEEDS = ["Explore the Grey Petrel.", "Explore Skyreach Observatory."]


async def synthesised(output: Path, seeds: list[str]) -> None:
    small = ["max_depth=2", "branching_factor=1", "control=false", f"output_dir={output}"]
    await asynthesize(seeds=seeds, overrides=small, progress=False)


def count_entries(journal: Path) -> int:
    with closing(sqlite3.connect(journal)) as connection:
        return int(connection.execute("SELECT count(*) FROM agentflow_entries").fetchone()[0])


@pytest.mark.promise("journal:records")
async def test_a_run_with_records_of_another_version_is_read_and_not_resumed(tmp_path: Path) -> None:
    output, journal = tmp_path / "run", tmp_path / "run/journal.db"
    await synthesised(output, SEEDS[:1])
    export_run(output, "native", tmp_path / "before")
    with closing(sqlite3.connect(journal)) as connection, connection:
        (body,) = connection.execute("SELECT body FROM agentflow_entries WHERE key = 'start'").fetchone()
        earlier = body.replace(b'"records":1', b'"records":0')
        assert earlier != body
        connection.execute("UPDATE agentflow_entries SET body = ? WHERE key = 'start'", (earlier,))
    # There is nothing left to do, so nothing is mixed.
    await synthesised(output, SEEDS[:1])
    entries = count_entries(journal)
    with pytest.raises(ConfigurationError) as refused:
        await synthesised(output, SEEDS)
    assert str(refused.value) == (
        "output_dir: the records of this run are of version 0, and this program writes version 1: view or export the "
        "run, finish it with the program that began it, or name another output_dir"
    )
    assert count_entries(journal) == entries
    export_run(output, "native", tmp_path / "after")
    names = sorted(file.name for file in (tmp_path / "before").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "after").iterdir())
    for name in names:
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()
