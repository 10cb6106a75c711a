"""Several supervisors with one journal: they share the seeds, and take over those of a killed one."""

import json
import sqlite3
import sys
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import Popen

import anyio
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import finish, running
from tests.system._supervised import PROGRAM, contents, endpoint, settings, undisturbed, wait_for

HOLDERS = "SELECT count(DISTINCT owner) FROM agentflow_seeds WHERE NOT done"
ALONE = 12
"""Calls answered before both work: too few for one supervisor to finish alone."""


@contextmanager
def together(folder: Path, *words: str, outputs: tuple[str, str]) -> Generator[list[Popen[str]]]:
    """Two supervisors of one run."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running(
                    PROGRAM,
                    "--json",
                    *words,
                    "max_open_trees=1",
                    f"output_dir={output}",
                    cwd=folder,
                    python=sys.executable,
                )
            )
            for output in outputs
        ]


def holders_in(journal: Path) -> int:
    """Return the number of processes that hold seeds in a SQLite journal."""
    try:
        with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30)) as database:
            return int(database.execute(HOLDERS).fetchone()[0])
    except sqlite3.OperationalError:
        # The journal does not exist yet.
        return 0


def holders_at(url: str) -> int:
    """Return the number of processes that hold seeds in a Postgres journal."""

    async def ask() -> int:
        engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), poolclass=NullPool)
        try:
            async with engine.connect() as connection:
                return int(await connection.scalar(text(HOLDERS)) or 0)
        except ProgrammingError:
            # The tables do not exist yet.
            return 0
        finally:
            await engine.dispose()

    return anyio.run(ask)


def both_work(programs: list[Popen[str]], journal: str | Path) -> None:
    """Wait until two processes hold seeds."""

    def two() -> bool:
        ended = [finish(program) for program in programs if program.poll() is not None]
        assert not ended, ended
        return (holders_at(journal) if isinstance(journal, str) else holders_in(journal)) == 2

    wait_for(two)


@pytest.mark.promise("system:sharing")
def test_two_supervisors_on_one_postgres_journal_share_the_seeds_and_process_none_twice(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    with endpoint(hold_after=ALONE) as at:
        words = (*settings(tmp_path), *at.words, f"journal={url}")
        with together(tmp_path, *words, outputs=("here", "there")) as programs:
            both_work(programs, url)
            at.release()
            ended = [finish(program) for program in programs]
        counted = at.stats()
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert (counted["calls"], counted["repeated_bodies"]) == (undisturbed().calls, 0)
    assert json.loads(ended[0][1])["report"] == json.loads(ended[1][1])["report"]
    assert contents(tmp_path / "here") == contents(tmp_path / "there") == undisturbed().files


@pytest.mark.promise("system:sharing:kill")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_the_other_supervisor_takes_over_the_seeds_of_a_killed_one(
    kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    shared = tmp_path / "journal.db"
    url = postgres.new_database() if kind == "postgres" else f"sqlite:///{shared}"
    with endpoint(hold_after=ALONE) as at:
        words = (*settings(tmp_path), *at.words, f"journal={url}")
        with together(tmp_path, *words, outputs=("here", "there")) as programs:
            both_work(programs, url if kind == "postgres" else shared)
            survivor, victim = programs
            victim.kill()
            victim.wait()
            asked = at.stats()["calls"]
            at.release()
            status, out, err = finish(survivor)
        counted = at.stats()
    assert status == 0, err
    assert json.loads(out)["report"]["seeds"] == 6
    assert counted["calls"] <= undisturbed().calls + asked, (
        "only what was asked before the kill can be repeated"
    )
    assert contents(tmp_path / "here") == undisturbed().files
