"""Sessions that share a Postgres role, before and after the documented statements."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from agentflow.sandbox import ToolResult
from tests._postgres import PostgresServer
from tests.behaviour._tree import ROOT
from tests.mcp_servers.sql._asking import Asking, Connection, asking, connected, make_postgres, run_as_owner

pytestmark = pytest.mark.promise("sql:shared-role")

LONG_QUERY = "SELECT pg_advisory_xact_lock(7) -- of another session"
# Not the same text, so that a query does not find itself.
MARKED = "LIKE '%of another ' || 'session%'"
WAITING = "FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
READING = {
    "view": "SELECT query FROM pg_stat_activity",
    "function": "SELECT query FROM pg_stat_get_activity(NULL)",
    "backends": "SELECT pg_stat_get_backend_activity(n) AS query FROM pg_stat_get_backend_idset() AS n",
}
ENDING = {
    "cancel": f"SELECT pg_cancel_backend(pid) {WAITING}",
    "terminate": f"SELECT pg_terminate_backend(pid) {WAITING}",
}
VIEWS = """
SELECT format('%I.%I', nspname, relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname IN ('pg_catalog', 'information_schema') AND relkind IN ('r', 'v')
"""


def documented_statements() -> list[str]:
    page = (ROOT / "docs/sql.md").read_text(encoding="utf-8")
    statements = page.partition("```sql\n")[2].partition("```")[0].split(";")
    return [statement for statement in statements if statement.strip()]


@asynccontextmanager
async def running(session: Asking, owner: Connection) -> AsyncGenerator[list[ToolResult]]:
    """Run a query that ends with the block, unless somebody ends it; the list gets its result."""
    results: list[ToolResult] = []

    async def run() -> None:
        results.append(await session.call("execute", query=LONG_QUERY))

    await owner.execute("SELECT pg_advisory_lock(7)")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        while not await owner.fetch(f"SELECT 1 {WAITING}"):  # noqa: ASYNC110 - the server tells nobody
            await anyio.sleep(0.01)
        yield results
        await owner.execute("SELECT pg_advisory_unlock(7)")


async def test_the_documented_statements_separate_the_sessions_of_a_role(postgres: PostgresServer) -> None:
    url = await make_postgres(postgres)
    as_owner = connected(url.replace("keeper@", "postgres@"))
    async with (
        asking(databases={"a": url}) as first,
        asking(databases={"a": url}) as second,
        as_owner as owner,
    ):
        with anyio.fail_after(120):
            for name, query in ENDING.items():
                async with running(first, owner) as ended:
                    for source in READING.values():
                        rows = await second.rows(f"SELECT count(*) FROM ({source}) AS q WHERE query {MARKED}")
                        assert rows == [[1]], source
                    assert await second.rows(query) == [[True]]
                assert not ended[0].ok or ended[0].data["error"] is not None, name

            for statement in documented_statements():
                await owner.execute(statement)
            async with running(first, owner) as kept:
                for query in (*READING.values(), *ENDING.values()):
                    kind, message = await second.failure("execute", query=query)
                    assert (kind, "permission denied" in message) == ("denied", True), message
                views = await owner.fetch(VIEWS)
                assert len(views) > 100
                for (view,) in views:
                    searched = await second.call(
                        "execute", query=f"SELECT count(*) FROM {view} AS v WHERE v::text {MARKED}"
                    )
                    assert not searched.ok or searched.data["rows"] == [[0]], view
            assert kept[0].ok, kept
            assert kept[0].data["error"] is None


async def test_copies_work_with_the_documented_statements_and_keep_them(postgres: PostgresServer) -> None:
    url = await make_postgres(postgres)
    await run_as_owner(url.replace("keeper@", "postgres@"), *documented_statements())
    async with asking(databases={"a": url}, writable=True) as session:
        await session.data("execute", query="DELETE FROM pets")
        assert await session.rows("SELECT count(*) FROM pets") == [[0]]
        for query in (*READING.values(), "SELECT pg_terminate_backend(1)"):
            kind, message = await session.failure("execute", query=query)
            assert (kind, "permission denied" in message) == ("denied", True), message
