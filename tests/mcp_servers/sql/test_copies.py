"""Databases that sessions may change: each has copies of its own, forks copy them, and all of them go away."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal, cast

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests._postgres import PostgresServer
from tests.mcp_servers.sql._asking import (
    Asking,
    asking,
    databases_of,
    entries,
    make_duckdb,
    make_postgres,
    make_sqlite,
    run_as_owner,
)

COUNTERS = "CREATE TABLE counters (name varchar(9) PRIMARY KEY, value integer)"
ENGINES = ("sqlite", "duckdb", "postgres")
STATE = "SELECT name, value FROM counters ORDER BY name"


@pytest.fixture(scope="module")
async def counters(
    anyio_backend: Literal["asyncio"], tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> dict[str, str]:
    """An empty table in each engine."""
    folder: Path = tmp_path_factory.mktemp("counters")
    return {
        "sqlite": str(make_sqlite(folder / "c.sqlite", COUNTERS)),
        "duckdb": str(make_duckdb(folder / "c.duckdb", COUNTERS)),
        "postgres": await make_postgres(postgres, COUNTERS),
    }


@pytest.fixture(scope="module")
async def root(
    anyio_backend: Literal["asyncio"], counters: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Asking]:
    """A session without copies, to make others from; one of them for all tests, since its engines stay open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("copies")))
        async with asking(databases=counters, writable=True) as untouched:
            yield untouched


@pytest.fixture
async def writing(root: Asking) -> AsyncGenerator[Asking]:
    """A session of its own."""
    session = await root.fork()
    yield session
    await session.close()


def left_behind(folder: Path) -> list[str]:
    """The copies in a folder for temporary files."""
    return [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.promise("sql:writable")
async def test_a_session_changes_only_its_own_copy(
    root: Asking, writing: Asking, counters: dict[str, str], engine: str
) -> None:
    listed = cast("list[object]", (await writing.data("list_databases"))["databases"])
    assert {"id": engine, "engine": engine, "writable": True} in listed
    insert = "INSERT INTO counters VALUES ('a', 1), ('b', 2)"
    assert (await writing.data("execute", database=engine, query=insert))["changed"] == 2
    assert await writing.rows(STATE, database=engine) == [["a", 1], ["b", 2]]
    returned = await writing.rows("DELETE FROM counters WHERE name = 'b' RETURNING value", database=engine)
    assert returned == [[2]]
    assert await writing.problem("INSERT INTO counters VALUES ('a', 9)", database=engine)
    assert await writing.rows(STATE, database=engine) == [["a", 1]]
    other = await root.fork()
    assert await other.rows(STATE, database=engine) == []
    await other.close()
    async with asking(databases={engine: counters[engine]}) as reader:
        assert await reader.rows(STATE, database=engine) == []


@pytest.mark.promise("sql:one-statement")
async def test_a_statement_that_is_stopped_changes_nothing(writing: Asking, engine: str) -> None:
    endless = (
        "INSERT INTO counters WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
        "SELECT 'x', count(*) FROM r"
    )
    assert await writing.rows(STATE, database=engine) == []
    kind, _ = await writing.failure("execute", database=engine, query=endless, timeout=0.3)
    assert kind == "timeout"
    with anyio.move_on_after(0.3):
        await writing.call("execute", database=engine, query=endless)
    assert await writing.rows(STATE, database=engine) == []
    assert (await writing.data("execute", database=engine, query="DELETE FROM counters"))["changed"] == 0


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "add", "drop"]), st.sampled_from("abc"), st.integers(0, 99)), max_size=4
)


async def take_all(session: Asking, steps: list[Step]) -> None:
    for engine in ENGINES:
        await take(session, engine, steps)


async def take(session: Asking, engine: str, steps: list[Step]) -> None:
    for kind, name, value in steps:
        queries = {
            "set": f"INSERT INTO counters VALUES ('{name}', {value}) "
            f"ON CONFLICT (name) DO UPDATE SET value = {value}",
            "add": f"UPDATE counters SET value = value + {value}",
            "drop": f"DELETE FROM counters WHERE name = '{name}'",
        }
        await session.rows(queries[kind], database=engine)


async def show(session: Asking, engine: str) -> list[list[object]]:
    return await session.rows(STATE, database=engine)


async def show_all(session: Asking) -> list[list[list[object]]]:
    return [await show(session, engine) for engine in ENGINES]


def expected(steps: list[Step]) -> list[list[object]]:
    state: dict[str, int] = {}
    for kind, name, value in steps:
        if kind == "set":
            state[name] = value
        elif kind == "add":
            state = {key: old + value for key, old in state.items()}
        else:
            state.pop(name, None)
    return [[name, state[name]] for name in sorted(state)]


@pytest.mark.promise("sql:fork")
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=STEPS, here=STEPS, there=STEPS)
async def test_a_fork_is_exact_and_parent_fork_and_replay_agree(
    root: Asking, before: list[Step], here: list[Step], there: list[Step]
) -> None:
    async with AsyncExitStack() as stack:

        async def forked(session: Asking) -> Asking:
            fork = await session.fork()
            stack.push_async_callback(fork.close)
            return fork

        parent = await forked(root)
        await take_all(parent, before)
        first, second = await forked(parent), await forked(parent)
        assert await show_all(parent) == await show_all(first) == [expected(before)] * 3
        await take_all(parent, here)
        await take_all(first, there)
        assert await show_all(parent) == [expected(before + here)] * 3
        assert await show_all(first) == [expected(before + there)] * 3
        assert await show_all(second) == [expected(before)] * 3
        replay = await forked(root)
        await take_all(replay, before + there)
        assert await show_all(replay) == await show_all(first)


@pytest.mark.promise("sql:fork")
async def test_a_fork_outlives_its_parent_and_all_copies_go_with_their_sessions(
    counters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with asking(databases=counters, writable=True) as parent:
        await take_all(parent, [("set", "a", 1)])
        fork = await parent.fork()
        await parent.sandbox.destroy_session()
        await take_all(fork, [("add", "a", 1)])
        assert await show_all(fork) == [[["a", 2]]] * 3
        assert await show_all(parent) == [[]] * 3
        await fork.close()
        await parent.sandbox.destroy_session()
        assert left_behind(tmp_path) == []
    assert entries(tmp_path) == []


async def test_a_large_file_is_not_copied(tmp_path: Path) -> None:
    path = make_sqlite(tmp_path / "large.db", "CREATE TABLE t AS SELECT zeroblob(2000000) AS b")
    async with asking(databases={"a": str(path)}, writable=True, copy_bytes=1024 * 1024) as session:
        kind, message = await session.failure("execute", query="SELECT 1")
        assert kind == "failed"
        assert "copy_bytes" in message
    path = make_sqlite(tmp_path / "small.db", "CREATE TABLE t (b)")
    async with asking(databases={"a": str(path)}, writable=True, copy_bytes=1024 * 1024) as session:
        await session.problem("INSERT INTO t VALUES (randomblob(3000000))")
        assert await session.rows("SELECT count(*) FROM t") == [[0]]


KILLED = """
import sys, anyio
from agentflow import Sandbox
from agentflow.sandbox import SandboxSettings
async def main():
    sql = {"databases": {"f": sys.argv[1], "p": sys.argv[2]}, "writable": True}
    async with Sandbox(SandboxSettings(backends={"sql": sql})) as sandbox:
        for name in ("f", "p"):
            found = await sandbox.execute("sql:execute", {"database": name, "query": "DELETE FROM counters"})
            assert found.ok, found
        print("ready", end="", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


async def until_free(url: str, copy: str) -> None:
    """Wait until the database's server knows that who made a copy is gone: it learns of it from the connection."""
    server, _, _ = url.rpartition("/")
    owner = int(copy.split("_")[2], 16)
    with anyio.fail_after(60):
        await run_as_owner(
            f"{server}/postgres", f"SELECT pg_advisory_lock({owner}); SELECT pg_advisory_unlock({owner})"
        )


@pytest.mark.promise("sql:killed")
async def test_copies_of_a_killed_server_are_removed_by_the_next_one(
    postgres: PostgresServer, counters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    databases = {"f": counters["sqlite"], "p": await make_postgres(postgres, COUNTERS)}
    before = await databases_of(databases["p"])
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", KILLED, databases["f"], databases["p"]]
    async with await anyio.open_process(command, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert await process.stdout.receive() == b"ready"
        process.send_signal(signal.SIGKILL)
    (left,) = set(await databases_of(databases["p"])) - set(before)
    assert len(left_behind(tmp_path)) == 1
    await until_free(databases["p"], left)
    async with asking(databases=databases, writable=True) as next_one:
        assert await next_one.rows(STATE, database="f") == []
        assert await next_one.rows(STATE, database="p") == []
        assert left not in await databases_of(databases["p"])
        assert len(left_behind(tmp_path)) == 1
    assert await databases_of(databases["p"]) == before
    assert entries(tmp_path) == []
