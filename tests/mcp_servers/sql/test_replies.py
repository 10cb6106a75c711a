"""Replies of engine processes: large honest ones come through, hostile ones are one failure."""

import tracemalloc
from pathlib import Path
from typing import cast

import pytest

from mcp_servers.sql._workers import query_limits, schema_limits
from tests.mcp_servers.sql._asking import asking, make_duckdb, make_sqlite

MIB = 1024 * 1024
RESULT_BYTES = 24 * MIB
ROWS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 10000) SELECT "
HOSTILE = """
import os, sys

def reply(data):
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()

def request():
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    return sys.stdin.buffer.read(size)

def head():
    sys.stdout.buffer.write((256 << 20).to_bytes(4, "big") + bytes(99))
    sys.stdout.buffer.flush()

request()
reply(b"{}")
request()
START
"""
QUERY = b'{"columns": [], "rows": %s, "more": "", "changed": null}'
ATTACKS = {
    "256 MiB": "head()",
    "more than its limit": f"reply(b' ' * {query_limits(MIB).max_bytes + 1})",
    "a bomb": f"reply({QUERY!r} % (b'[' + b'[],' * {5 * MIB} + b'[]]'))",
    "deep nesting": f"reply({QUERY!r} % (b'[' * 200000 + b']' * 200000))",
    "wrong types": f"reply({QUERY!r} % b'7')",
    "no reply": "reply(b'[]')",
    "a wrong failure": """reply(b'{"kind": 7}')""",
    "a long failure": """reply(b'{"kind": "failed", "type": "", "message": "' + b'x' * 9999999 + b'"}')""",
}


@pytest.mark.promise("sql:limits:rows")
async def test_a_result_within_its_limits_comes_through_however_large(tmp_path: Path) -> None:
    columns = ", ".join(f'n AS "c{number}"' for number in range(30))
    wide = "; ".join(
        f"CREATE TABLE t{table} ({', '.join(f'c{column} integer' for column in range(1300))})"
        for table in range(50)
    )
    databases = {
        "lite": str(make_sqlite(tmp_path / "a.sqlite", f"{wide};")),
        "duck": str(make_duckdb(tmp_path / "b.duckdb")),
    }
    async with asking(databases=databases, result_bytes=RESULT_BYTES, timeout=100) as large:
        text = await large.rows(f"{ROWS} printf('%.*c', 1800, 'x') FROM r", database="lite", limit=10_000)
        assert (len(text), set(map(str, text))) == (10_000, {str(["x" * 1800])})
        values = await large.rows(f"{ROWS} {columns} FROM r", database="duck", limit=10_000)
        assert (len(values), values[-1]) == (10_000, [10_000] * 30)
        schema = await large.data("schema", database="lite", sample_rows=1)
        assert len(cast("list[object]", schema["tables"])) == 50


@pytest.mark.promise("sql:compromised")
async def test_a_hostile_reply_is_one_failure_and_the_worker_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One database each, because an idle worker is used again.
    databases = {name: str(make_sqlite(tmp_path / f"{name}.sqlite")) for name in ATTACKS}
    async with asking(databases=databases, result_bytes=MIB) as session:
        for name, attack in ATTACKS.items():
            with monkeypatch.context() as patch:
                patch.setattr("mcp_servers.sql._workers._PROGRAM", HOSTILE.replace("START", attack))
                tracemalloc.start()
                try:
                    kind, message = await session.failure("execute", query="SELECT 1", database=name)
                    peak = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
            assert kind == "failed", (name, message)
            assert len(message) < 11_000, name
            assert peak < 4 * schema_limits(MIB).max_bytes, (name, peak // MIB)
            if name == "a long failure":
                continue
            assert "the engine's process sent a bad answer" in message, (name, message)
            assert await session.rows("SELECT count(*) FROM people", database=name) == [[2]], name
