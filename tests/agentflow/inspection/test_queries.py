"""Queries of a reader: those about one seed never read the rest of its run."""

import re

import pytest
from sqlalchemy import Connection, Engine, event

from agentflow.journal import open_reader
from tests.agentflow.inspection._journals import OnlyRun, claimed, grow

SPOTS = ["0", "1", "0-0", "0-1", "1-0", "1-1"]


@pytest.mark.promise("inspection:indexed")
async def test_queries_about_one_seed_use_an_index_of_that_seed(url: str, only_run: OnlyRun) -> None:
    asked: dict[str, tuple[object, ...]] = {}

    def note(
        _: Connection, cursor: object, statement: str, parameters: tuple[object, ...], *rest: object
    ) -> None:
        del cursor, rest
        if re.search(r"FROM agentflow_(entries|harvests)|max\(agentflow_entries", statement):
            asked[statement] = parameters

    async with claimed(url) as (_, run, (seed,)):
        await grow(await run.open_page(seed), SPOTS, 2)
        await run.finish(seed, b"{}")
        reader = only_run(url)
        cursor = reader.changes("", seed.id).cursor
        event.listen(Engine, "before_cursor_execute", note)
        try:
            skeleton = reader.skeleton(seed.id)
            reader.nodes(seed.id, skeleton.spots)
            for spot in skeleton.spots:
                reader.node(seed.id, spot)
            reader.call(seed.id, "plan/root/0")
            next(reader.records())
            reader.tokens(seed.id)
            reader.results(seed.id)
            reader.search("harbour", seed=seed.id)
            reader.changes(cursor, seed.id)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert len(asked) > 8
    with open_reader(url) as journal:
        for statement, parameters in asked.items():
            plan = journal.read(lambda connection, s=statement, p=parameters: explain(connection, s, p))
            about = [
                line
                for line in plan
                if re.search("agentflow_(entries|harvests)", line) or "Index Cond" in line
            ]
            assert about, plan
            assert not [
                line for line in about if re.search("SCAN agentflow|Seq Scan on agentflow_(e|h)", line)
            ], plan
            bounded = [line for line in about if re.search(r"run ?=.*seed ?[=<>]|rowid[<>]", line)]
            assert bounded or "max(rowid)" in statement, (statement, plan)


def explain(connection: Connection, statement: str, parameters: tuple[object, ...]) -> list[str]:
    """Return the plan of a query, line by line. Small tables are read whole unless that is forbidden."""
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        return [row[3] for row in rows]
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    return [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).all()]
