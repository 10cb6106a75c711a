"""Reading databases of every engine."""

import json
from pathlib import Path
from typing import cast

import anyio
import pytest

from agentflow.errors import ConfigurationError
from mcp_servers.sql import SqlBackend
from tests.mcp_servers.sql._asking import ENDLESS, Asking, asking, make_duckdb, make_sqlite


@pytest.mark.promise("sql:list")
async def test_databases_are_listed_by_id_with_their_engine(
    reading: Asking, databases: dict[str, str]
) -> None:
    listed = await reading.data("list_databases")
    assert listed["databases"] == [
        {"id": name, "engine": name, "writable": False} for name in ("duckdb", "postgres", "sqlite")
    ]
    assert not any(location in json.dumps(listed) for location in databases.values())


@pytest.mark.promise("sql:schema")
async def test_the_schema_lists_types_keys_and_row_counts(reading: Asking, engine: str) -> None:
    schema = await reading.data("schema", database=engine, sample_rows=1)
    tables = {str(table["name"]): table for table in cast("list[dict[str, object]]", schema["tables"])}
    assert sorted(tables) == ["owners", "people", "pets"]
    people = tables["people"]
    columns = cast("list[dict[str, object]]", people["columns"])
    assert [column["name"] for column in columns] == ["id", "name", "pay", "born"]
    assert [str(column["type"]).lower() for column in columns][3] == "date"
    assert columns[1]["nullable"] is False
    assert people["primary_key"] == ["id"]
    assert people["row_count"] == 2
    assert cast("list[list[object]]", people["sample"])[0][:2] == [1, "Änne"]
    (key,) = cast("list[dict[str, object]]", tables["pets"]["foreign_keys"])
    assert key == {"columns": ["owner"], "table": "people", "referred_columns": ["id"]}
    assert (tables["owners"]["kind"], tables["owners"]["row_count"]) == ("view", None)


async def test_only_some_tables_are_described_when_only_some_are_asked_for(
    reading: Asking, engine: str
) -> None:
    schema = await reading.data("schema", database=engine, tables=["PETS"])
    assert [table["name"] for table in cast("list[dict[str, object]]", schema["tables"])] == ["pets"]
    kind, message = await reading.failure("schema", database=engine, tables=["pest"])
    assert kind == "not_found"
    assert "Did you mean 'pets'?" in message


@pytest.mark.promise("sql:execute")
async def test_a_query_gives_columns_with_types_and_rows(reading: Asking, engine: str) -> None:
    query = "SELECT name, pay, born FROM people ORDER BY id"
    data = await reading.data("execute", database=engine, query=query)
    assert [column["name"] for column in cast("list[dict[str, str]]", data["columns"])] == [
        "name",
        "pay",
        "born",
    ]
    assert data["rows"] == [["Änne", 10.5, "1990-02-03"], ["Bo", None, None]]
    assert (data["row_count"], data["truncated"], data["changed"]) == (2, False, None)


VALUES: dict[str, list[tuple[str, object]]] = {
    "sqlite": [
        ("9e999", "Infinity"),
        ("x'00ff'", "x'00ff'"),
        ("9223372036854775807", 2**63 - 1),
        ("NULL", None),
    ],
    "duckdb": [
        ("'nan'::DOUBLE", "NaN"),
        ("'-inf'::FLOAT", "-Infinity"),
        ("1.10::DECIMAL(9, 2)", 1.1),
        ("1::HUGEINT << 100", str(2**100)),
        (r"'\x00'::BLOB", "x'00'"),
        ("TIMESTAMP '2024-01-02 03:04:05'", "2024-01-02T03:04:05"),
        ("[1, NULL]", [1, None]),
        ("{'a': DATE '2024-01-02'}", {"a": "2024-01-02"}),
    ],
    "postgres": [
        ("'NaN'::float8", "NaN"),
        ("'NaN'::numeric", "NaN"),
        ("0.1::numeric", 0.1),
        ("12345678901234567890.5::numeric", "12345678901234567890.5"),
        (r"'\x00ff'::bytea", "x'00ff'"),
        ("interval '90 minutes'", "1:30:00"),
        ("timestamptz '2024-01-02 03:04:05+00'", "2024-01-02T03:04:05+00:00"),
        ("ARRAY[1, NULL]", [1, None]),
        ("'6f1f9c3e-0000-4000-8000-000000000000'::uuid", "6f1f9c3e-0000-4000-8000-000000000000"),
    ],
}
"""Expressions of each engine, and how their values are shown."""


@pytest.mark.promise("sql:values")
async def test_every_value_is_one_of_json_and_none_is_lost(reading: Asking, engine: str) -> None:
    query = f"SELECT {', '.join(expression for expression, _ in VALUES[engine])}"
    assert await reading.rows(query, database=engine) == [[value for _, value in VALUES[engine]]]


@pytest.mark.promise("sql:error")
async def test_a_wrong_name_is_a_failure_with_the_most_similar_one(reading: Asking, engine: str) -> None:
    assert "people" in await reading.problem("SELECT * FROM peple", database=engine)
    assert "name" in await reading.problem("SELECT nam FROM people", database=engine)
    assert await reading.problem("SELEC 1", database=engine)
    assert await reading.problem("SELECT 1; SELECT 2", database=engine)
    assert await reading.rows("SELECT 1", database=engine) == [[1]]


@pytest.mark.promise("sql:limits:rows")
async def test_rows_and_bytes_are_limited_and_the_result_says_so(reading: Asking, engine: str) -> None:
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 500) SELECT n FROM r ORDER BY n"
    data = await reading.data("execute", database=engine, query=many, limit=3)
    assert (data["rows"], data["truncated"]) == ([[1], [2], [3]], True)
    assert "more rows" in str(data["note"])
    data = await reading.data("execute", database=engine, query=many)
    assert (data["row_count"], data["truncated"]) == (100, True)
    wide = f"SELECT '{'x' * 9_000}' FROM ({many}) AS many"
    data = await reading.data("execute", database=engine, query=wide, limit=500)
    assert data["truncated"]
    assert "bytes" in str(data["note"])
    assert len(json.dumps(data["rows"])) < 300_000
    long = "hex(zeroblob(50000))" if engine == "sqlite" else "repeat('0', 100000)"
    ((text,),) = await reading.rows(f"SELECT {long}", database=engine)
    assert str(text).endswith("… (100000 characters)")


@pytest.mark.promise("sql:limits:time")
async def test_an_endless_query_is_stopped_while_others_continue(reading: Asking, engine: str) -> None:
    async def endless() -> None:
        await reading.call("execute", database=engine, query=ENDLESS)
        raise AssertionError("it was to go on until it is given up")

    async with anyio.create_task_group() as group:
        group.start_soon(endless)
        assert await reading.rows("SELECT count(*) FROM pets", database=engine) == [[3]]
        group.cancel_scope.cancel()
    stopped = await reading.failure("execute", database=engine, query=ENDLESS, timeout=0.4)
    assert stopped == ("timeout", "sql_execute: the query was stopped at its time limit.")
    assert await reading.rows("SELECT 1", database=engine) == [[1]]


@pytest.mark.promise("sql:limits:time")
async def test_the_end_of_a_call_ends_its_query(reading: Asking, engine: str) -> None:
    with anyio.move_on_after(0.3) as scope:
        await reading.call("execute", database=engine, query=ENDLESS)
    assert scope.cancelled_caught
    assert await reading.rows("SELECT 1", database=engine) == [[1]]


HUNGRY = {
    "sqlite": "WITH RECURSIVE r(n, s) AS (SELECT 1, zeroblob(1000000) UNION ALL "
    "SELECT n + 1, randomblob(1000000) FROM r LIMIT 500) SELECT n FROM r ORDER BY s",
    "duckdb": "SELECT i FROM range(40000000) AS r(i) ORDER BY hash(i)",
}


@pytest.mark.promise("sql:limits:memory")
@pytest.mark.parametrize("engine", list(HUNGRY))
async def test_a_query_that_wants_too_much_memory_fails_alone(reading: Asking, engine: str) -> None:
    kind, message = await reading.failure("execute", database=engine, query=HUNGRY[engine])
    assert kind == "out_of_memory", message
    assert await reading.rows("SELECT 1", database=engine) == [[1]]


@pytest.mark.promise("sql:names")
async def test_the_names_of_the_documentation_work(databases: dict[str, str]) -> None:
    async with asking(db_paths={"shop": databases["sqlite"]}) as session:
        sandbox = session.sandbox
        listed = await sandbox.execute("text2sql:list_databases", {})
        assert listed.data["databases"] == [{"id": "shop", "engine": "sqlite", "writable": False}]
        schema = await sandbox.execute("text2sql:get_schema", {"db_id": "shop", "table_names": ["pets"]})
        assert [table["name"] for table in cast("list[dict[str, str]]", schema.data["tables"])] == ["pets"]
        result = await sandbox.execute(
            "text2sql:execute", {"db_id": "shop", "query": "SELECT count(*) FROM pets"}
        )
        assert result.data["rows"] == [[3]]
    async with asking(connection_string=f"sqlite:///{databases['sqlite']}") as session:
        result = await session.sandbox.execute("execute_sql", {"query": "SELECT count(*) FROM pets"})
        assert result.data["rows"] == [[3]]
        assert (await session.sandbox.execute("get_table_schema", {})).ok


@pytest.mark.promise("sql:list")
async def test_the_files_of_a_folder_are_databases(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    make_sqlite(tmp_path / "deep/one.sqlite")
    make_duckdb(tmp_path / "two.duckdb")
    (tmp_path / "notes.txt").write_text("no database", encoding="utf-8")
    async with asking(databases_dir=str(tmp_path)) as session:
        listed = cast("list[dict[str, str]]", (await session.data("list_databases"))["databases"])
        assert {database["id"]: database["engine"] for database in listed} == {
            "one": "sqlite",
            "two": "duckdb",
        }
        assert await session.rows("SELECT count(*) FROM pets", database="two") == [[3]]
        kind, message = await session.failure("execute", query="SELECT 1", database="onr")
        assert (kind, message) == ("not_found", "sql_execute: no database 'onr'. Did you mean 'one'?")
        kind, message = await session.failure("execute", query="SELECT 1")
        assert (kind, message) == ("not_found", "sql_execute: name a database. There are: one, two.")


@pytest.mark.promise("sql:settings")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"databases": {"a": "/nowhere/a.db"}}, "sql.databases.a: /nowhere/a.db: No such file or directory"),
        (
            {"databases": {"a": __file__}},
            f"sql.databases.a: {__file__} is neither a SQLite nor a DuckDB file",
        ),
        ({"databases": {"a": "mysql://u:secret@h/d"}}, "sql.databases.a: no engine for mysql://."),
        ({"connection_string": "sqlite://"}, "sql.connection_string: name a file, as in sqlite:///"),
        ({"databases_dir": "/nowhere"}, "sql.databases_dir: there is no folder /nowhere"),
        ({"databses": {}}, "databses is unknown; did you mean databases?"),
    ],
)
def test_invalid_settings_give_one_line(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SqlBackend().check(settings)
    message = str(refused.value)
    assert expected in message
    assert "\n" not in message
    assert "secret" not in message


@pytest.mark.promise("sql:settings")
async def test_without_a_database_the_tools_say_what_to_set() -> None:
    async with asking() as session:
        assert (await session.data("list_databases"))["databases"] == []
        kind, message = await session.failure("execute", query="SELECT 1")
        assert kind == "unavailable"
        assert "set `databases` of the backend `sql`" in message


@pytest.mark.promise("sql:gone")
async def test_a_database_that_goes_away_fails_the_call_and_comes_back(tmp_path: Path) -> None:
    path = make_sqlite(tmp_path / "a.db")
    async with asking(databases={"a": str(path), "b": "postgresql://nobody@127.0.0.1:9/none"}) as session:
        assert await session.rows("SELECT 1", database="a") == [[1]]
        path.rename(tmp_path / "b.db")
        kind, message = await session.failure("execute", query="SELECT 1", database="a")
        assert (kind, message) == ("unavailable", "sql_execute: unable to open database file.")
        (tmp_path / "b.db").rename(path)
        assert await session.rows("SELECT 1", database="a") == [[1]]
        kind, message = await session.failure("execute", query="SELECT 1", database="b")
        assert kind == "unavailable"
        assert "can't be reached" in message
        path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000)
        assert await session.problem("SELECT * FROM people", database="a")
