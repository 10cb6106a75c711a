"""Restrictions on queries: no changes of read-only databases, no files, no side effects."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from tests._postgres import PostgresServer
from tests.mcp_servers.sql._asking import Asking, asking, connected, entries, make_sqlite, run_as_owner

EVERYWHERE = (
    "INSERT INTO pets VALUES (4, 1, 'eel')",
    "UPDATE pets SET kind = 'eel'",
    "DELETE FROM pets",
    "CREATE TABLE more (a integer)",
    "CREATE TEMPORARY TABLE more (a integer)",
    "CREATE VIEW more AS SELECT 1",
    "DROP TABLE pets",
    "ALTER TABLE pets ADD COLUMN more integer",
)
REFUSED = {
    "sqlite": (
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'other.db'",
        "DETACH main",
        "BEGIN",
        "SAVEPOINT here",
        "REPLACE INTO pets VALUES (1, 1, 'eel')",
        "CREATE VIRTUAL TABLE temp.words USING fts5(a)",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "PRAGMA hard_heap_limit = 0",
        "PRAGMA trusted_schema = ON",
        "PRAGMA journal_mode = WAL",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA database_list",
        "PRAGMA user_version = 7",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('evil')",
        "SELECT fts3_tokenizer('simple')",
    ),
    "duckdb": (
        "ATTACH ':memory:' AS other",
        "ATTACH 'other.db' AS other",
        "COPY pets TO 'other.csv'",
        "EXPORT DATABASE 'other'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 4",
        "SET enable_external_access = true",
        "RESET memory_limit",
        "PRAGMA memory_limit = '10GB'",
        "SET VARIABLE a = 1",
        "BEGIN",
        "CALL pragma_version()",
        "PREPARE p AS SELECT 1",
        "CREATE PERSISTENT SECRET s (TYPE http)",
        "USE memory",
    ),
    "postgres": (
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_ls_dir('/')",
        "SELECT lo_import('/etc/passwd')",
        "COPY pets TO '/tmp/pets'",
        "COPY pets TO PROGRAM 'cat'",
        "CREATE ROLE other",
        "CREATE DATABASE other",
        "TRUNCATE pets",
        "SELECT setval('pg_catalog.none', 1)",
    ),
}


@pytest.mark.promise("sql:read-only")
async def test_the_engine_itself_refuses_every_change(reading: Asking, engine: str) -> None:
    for query in EVERYWHERE:
        kind, message = await reading.failure("execute", database=engine, query=query)
        assert kind == "denied", (query, message)
    assert await reading.rows("SELECT count(*), min(kind) FROM pets", database=engine) == [[3, "cat"]]


@pytest.mark.promise("sql:no-way-out")
async def test_nothing_leads_out_of_the_database(reading: Asking, engine: str) -> None:
    for query in REFUSED[engine]:
        result = await reading.call("execute", database=engine, query=query)
        assert result.error is not None or result.data["error"] is not None, query
    assert await reading.rows("SELECT count(*) FROM pets", database=engine) == [[3]]


@pytest.mark.promise("sql:no-way-out")
@pytest.mark.parametrize(
    "query",
    [
        "SET TRANSACTION READ WRITE",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT write_it()",
        "DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; INSERT INTO pets VALUES (9, 1, 'eel'); END $$",
        "DO $$ BEGIN PERFORM set_config('transaction_read_only', 'off', true); DELETE FROM pets; END $$",
    ],
)
async def test_a_transaction_of_postgres_can_not_be_made_to_write(
    reading: Asking, databases: dict[str, str], query: str
) -> None:
    await run_as_owner(
        databases["postgres"],
        "CREATE OR REPLACE FUNCTION write_it() RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM set_config('transaction_read_only', 'off', true); DELETE FROM pets; END $$",
    )
    await reading.call("execute", database="postgres", query=query)
    assert await reading.rows("SELECT count(*) FROM pets", database="postgres") == [[3]]


@pytest.mark.promise("sql:no-traces")
@pytest.mark.parametrize(
    ("leave", "look", "there"),
    [
        (
            "SELECT set_config('default_transaction_read_only', 'off', false)",
            "SHOW default_transaction_read_only",
            [["on"]],
        ),
        ("SET search_path = nowhere", "SELECT count(*) FROM pets", [[3]]),
        (
            "SELECT pg_advisory_lock(42)",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
            [[0]],
        ),
        (
            "PREPARE mine AS SELECT 1",
            "SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'",
            [[0]],
        ),
        ("COMMIT", "SELECT count(*) FROM pets", [[3]]),
        ("SET statement_timeout = 1", "SELECT 1 FROM pg_sleep(0.01)", [[1]]),
    ],
)
async def test_no_statement_leaves_anything_for_the_next_one_on_postgres(
    reading: Asking, leave: str, look: str, there: list[list[object]]
) -> None:
    await reading.call("execute", database="postgres", query=leave)
    assert await reading.rows(look, database="postgres") == there


@pytest.mark.promise("sql:no-traces")
async def test_a_statement_is_put_away_on_postgres_when_its_answer_is_out(databases: dict[str, str]) -> None:
    async with (
        asking(databases={"a": databases["postgres"]}) as session,
        connected(databases["postgres"]) as other,
    ):
        await session.rows("SELECT pg_advisory_lock(43)")
        open_ = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'agentflow' AND state <> 'idle'"
        locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 43"
        with anyio.fail_after(60):
            while await other.fetch(f"{open_} UNION ALL {locks}"):  # noqa: ASYNC110 - the server tells nobody
                await anyio.sleep(0.01)


@pytest.mark.promise("sql:prepared")
@pytest.mark.parametrize(
    "query",
    [
        "PREPARE TRANSACTION 'mine'",
        "  ;; prepare\n\ttransaction'mine'",
        "-- PREPARE\nPREPARE/**/TRANSACTION 'mine'",
        "/* a /* nested */ comment */ PREPARE /***/ /**/ -- more\n TRANSACTION 'mine'",
    ],
)
async def test_no_transaction_of_postgres_is_prepared(
    reading: Asking, databases: dict[str, str], query: str
) -> None:
    kind, message = await reading.failure("execute", database="postgres", query=query)
    assert (kind, "PREPARE TRANSACTION is not allowed" in message) == ("denied", True), message
    assert await reading.rows("SELECT count(*) FROM pg_prepared_xacts", database="postgres") == [[0]]


@pytest.mark.promise("sql:prepared")
async def test_prepared_statements_and_comments_are_not_taken_for_prepared_transactions(
    reading: Asking,
) -> None:
    for query in ("PREPARE transaction_1 AS SELECT 1", "/* PREPARE TRANSACTION 'x' */ SELECT 1"):
        await reading.data("execute", database="postgres", query=query)
    assert "unterminated" in await reading.problem("/* /* PREPARE */ TRANSACTION", database="postgres")


OUT_OF_ENGINES = """
import os, pathlib, socket, sqlite3, subprocess, sys
if sys.argv[1] == "duckdb":
    import duckdb
from mcp_servers.sql.inside._confining import confine
from mcp_servers.sql.inside._engine import DatabaseSpec
engine, target, secret, folder = sys.argv[1:]
confine(DatabaseSpec(engine, target, False, 0, 0))
if engine == "sqlite":
    # Without any setting of ours.
    run = sqlite3.connect(target).execute
    queries = [f"ATTACH '{secret}' AS other", f"VACUUM INTO '{folder}/new.db'", "CREATE TABLE more (a)"]
elif engine == "duckdb":
    run = duckdb.connect(target, read_only=True).execute
    queries = [
        f"SELECT * FROM read_text('{secret}')", f"SELECT * FROM read_csv('{secret}')", f"ATTACH '{secret}' AS other",
        f"COPY pets TO '{folder}/new.csv'", f"EXPORT DATABASE '{folder}/new'", f"LOAD '{secret}'",
        "INSTALL httpfs FROM 'http://127.0.0.1:9/'",
    ]
else:
    run, queries = None, []
attempts = [lambda query=query: run(query) for query in queries] + [
    lambda: open(f"{folder}/new", "w"),
    lambda: os.unlink(secret),
    lambda: os.execv("/bin/true", ["true"]),
]
if run:
    assert run("SELECT count(*) FROM pets").fetchall() == [(3,)]
    attempts += [lambda: open(secret), lambda: os.listdir(folder), socket.socket, os.fork, lambda: os.kill(os.getppid(), 0)]
for number, attempt in enumerate(attempts):
    try:
        attempt()
    except Exception as error:
        continue
    print("worked:", number)
print("tried", len(attempts), flush=True)
os._exit(0)
"""


@pytest.mark.promise("sql:confined")
async def test_the_process_of_an_engine_is_confined_even_without_the_settings_of_the_engine(
    engine: str, databases: dict[str, str], tmp_path: Path
) -> None:
    secret = make_sqlite(tmp_path / "secret.db")
    arguments = [engine, databases[engine], str(secret), str(tmp_path)]
    done = await anyio.run_process([sys.executable, "-c", OUT_OF_ENGINES, *arguments], check=False)
    tried = {"sqlite": 11, "duckdb": 15, "postgres": 3}[engine]
    assert (done.stdout.decode(), done.returncode) == (f"tried {tried}\n", 0), done.stderr
    assert entries(tmp_path) == ["secret.db"]


@pytest.mark.promise("sql:superuser")
async def test_a_role_that_may_do_anything_is_refused_unless_the_server_allows_it(
    postgres: PostgresServer, databases: dict[str, str]
) -> None:
    url = databases["postgres"].replace("keeper@", "postgres@")
    async with asking(databases={"a": url}) as session:
        kind, message = await session.failure("execute", query="SELECT 1")
        assert kind == "denied"
        assert "set `superuser: true`" in message
    async with asking(databases={"a": url}, superuser=True) as session:
        assert await session.rows("SELECT 1") == [[1]]


@pytest.mark.promise("sql:settings:reserved")
async def test_a_session_cannot_add_databases_or_change_limits(databases: dict[str, str]) -> None:
    async with asking(databases={"a": databases["sqlite"]}) as session:
        for setting in ("databases", "db_paths", "connection_string", "memory_bytes", "writable"):
            started = await session.sandbox.execute(
                "session:start", {"settings": {"sql": {setting: "/etc/passwd"}}}
            )
            assert started.error is not None
            assert started.error.kind == "denied", started


@pytest.mark.promise("sql:no-traces")
async def test_a_file_in_wal_mode_is_read_without_making_files_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "wal.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    assert entries(tmp_path) == ["wal.db"]
    async with asking(databases={"a": str(path)}) as session:
        assert await session.rows("SELECT a FROM t") == [[1]]
        assert entries(tmp_path) == ["wal.db"]
        with closing(sqlite3.connect(path)) as writer:
            writer.execute("INSERT INTO t VALUES (2)")
            writer.commit()
            assert await session.rows("SELECT a FROM t") == [[1], [2]]
