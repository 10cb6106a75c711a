"""Text-to-SQL tasks on real databases."""

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import ModelFailureKind
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.tasks import (
    DerivationSettings,
    DerivedTasks,
    TaskAttempt,
    TaskKind,
    TaskProblem,
    TaskRelation,
    check_task,
    open_text2sql,
)
from agentflow.trace import (
    Action,
    ActionOutcome,
    Failure,
    IndependentSolutionRequest,
    Node,
    Observation,
    Text,
    Verdict,
)
from tests._postgres import PostgresServer
from tests.agentflow.tasks._generators import Current, Scripted
from tests.agentflow.tasks._shop import OfflineTasks, seed_tree, shop_database, shop_rows, shop_script
from tests.mcp_servers.sql._asking import connected, databases_of, make_postgres

TOP = (
    "SELECT c.name, SUM(o.amount) FROM customers c JOIN orders o ON o.customer_id = c.id "
    "WHERE o.amount > 5 GROUP BY c.id, c.name ORDER BY SUM(o.amount) DESC, c.name LIMIT 3"
)
QUESTION = (
    "Which three buyers ordered the most in orders above five pieces, and how many pieces? Largest first."
)


@asynccontextmanager
async def text2sql(
    database: Path | str, generator: OfflineTasks, max_tasks: int = 3
) -> AsyncGenerator[TaskKind]:
    """Open the kind over a database; yields it."""
    sql: dict[str, object] = {"databases": {"shop": str(database)}, "writable": True, "workers": 16}
    backends = {"sql": sql}
    async with (
        Sandbox(SandboxSettings(backends=backends)) as sandbox,
        open_text2sql(sandbox, generator, DerivationSettings(max_tasks=max_tasks)) as kind,
    ):
        yield kind


class ScriptedSql(Scripted):
    """Generator with a query about the largest buyers."""

    def __init__(
        self,
        query: str = TOP,
        question: str | Failure = QUESTION,
        again: tuple[str, ...] = (TOP,),
        *,
        ordered: bool = True,
    ) -> None:
        super().__init__(query, question, again, ordered=ordered)


@asynccontextmanager
async def shop(tmp_path: Path) -> AsyncGenerator[Callable[..., Awaitable[DerivedTasks]]]:
    """Open a shop; yields a function that derives its tasks with a generator, and nodes of the tree."""
    current = Current()
    async with text2sql(shop_database(tmp_path / "shop.db"), current, max_tasks=1) as kind:

        async def derive(generator: OfflineTasks, *nodes: Node) -> DerivedTasks:
            current.answering = generator
            return await kind.derive(seed_tree("Sales of the shop", *nodes), Page())

        yield derive


async def check_all(database: Path | str, seeds: int) -> int:
    """Derive tasks of a shop and check them; return their number."""
    async with text2sql(database, OfflineTasks(), max_tasks=8) as kind:
        page = Page()
        derived = await kind.derive(seed_tree(f"Sales of the shop {seeds}"), page)
        for task in derived.tasks:
            check = await check_task(task, kind, page)
            assert check.findings == ()
            assert {trial.attempt for trial in check.trials} >= {"gold", "initial", "no_op", "constant"}
            assert len(check.trials) > 4, "no typical mistake was tried"
        return len(derived.tasks)


@pytest.mark.promise("tasks:text2sql:generated")
async def test_generated_tasks_accept_their_solution_and_nothing_else(tmp_path: Path) -> None:
    database = shop_database(tmp_path / "shop.db", 3)
    before = database.read_bytes()
    assert await check_all(database, 3) == 8
    assert database.read_bytes() == before


@pytest.mark.soak
@pytest.mark.promise("tasks:text2sql:generated")
async def test_forty_generated_tasks_accept_their_solution_and_nothing_else(tmp_path: Path) -> None:
    counts = [await check_all(shop_database(tmp_path / f"{seed}.db", seed), seed) for seed in range(6)]
    assert sum(counts) >= 40


@pytest.mark.promise("tasks:text2sql:postgres")
async def test_tasks_of_a_postgres_database_are_verified_on_perturbed_copies_of_it(
    postgres: PostgresServer,
) -> None:
    url = await make_postgres(postgres, shop_script(3))
    assert await check_all(url, 3) == 8
    assert await databases_of(url) == [], "copies are removed with their sessions"
    async with connected(url) as connection:
        (row,) = await connection.fetch("SELECT count(*), sum(amount) FROM orders")
    orders = shop_rows(3)["orders"]
    assert tuple(row) == (len(orders), sum(order[3] for order in orders))


@pytest.mark.promise("tasks:text2sql:perturbed")
async def test_the_right_rows_for_the_wrong_reason_fail_on_a_perturbed_copy(tmp_path: Path) -> None:
    async with text2sql(shop_database(tmp_path / "shop.db"), ScriptedSql()) as kind:
        (task,) = (await kind.derive(seed_tree(), Page())).tasks
        assert len(task.verifier) == 4
        constant = next(attempt for attempt in task.wrong if attempt.name == "constant")
        verdict = await kind.verify(task, constant)
        assert not verdict.passed
        assert "perturbed copy" in verdict.reasons[0]
        attempts = {
            TOP: True,
            f"```sql\n{TOP};\n```": True,
            TOP.replace("c.name, SUM(o.amount)", "SUM(o.amount), c.name"): True,
            TOP.replace("LIMIT 3", "LIMIT 4"): False,
            TOP.replace("> 5", "> 4"): False,
            "": False,
            "DELETE FROM orders": False,
            "WITH gone AS (SELECT 1) DELETE FROM orders": False,
            "SELECT * FROM nothing": False,
        }
        for query, passes in attempts.items():
            found = await kind.verify(task, TaskAttempt(name="own", answer=query))
            assert (found.passed, found.error) == (passes, ""), query


@pytest.mark.promise("tasks:text2sql:constraints")
async def test_changes_keep_the_constraints_of_the_database(tmp_path: Path) -> None:
    database = shop_database(tmp_path / "shop.db")
    async with text2sql(database, ScriptedSql()) as kind:
        (task,) = (await kind.derive(seed_tree(), Page())).tasks
    for predicate in task.verifier[1:]:
        with closing(sqlite3.connect(":memory:")) as copy:
            with closing(sqlite3.connect(database)) as original:
                original.backup(copy)
            changes = [action.arguments["query"] for action in predicate.probe]
            assert {change.split()[0] for change in changes} == {"UPDATE", "DELETE", "INSERT"}
            assert any("NULL" in change for change in changes)
            assert any("max(" in change and change.startswith("UPDATE") for change in changes)
            for change in changes:
                copy.execute(change)
            assert copy.execute("PRAGMA foreign_key_check").fetchall() == []
            assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.promise("tasks:text2sql:rejected")
async def test_a_query_without_a_good_question_is_rejected_with_the_reason(tmp_path: Path) -> None:
    cases = [
        (ScriptedSql("SELECT name FROM customers WHERE id > 99"), TaskProblem.EMPTY_RESULT),
        (ScriptedSql("SELECT MAX(id) FROM customers WHERE id > 99"), TaskProblem.EMPTY_RESULT),
        (ScriptedSql("SELECT * FROM customers"), TaskProblem.WHOLE_TABLE),
        (ScriptedSql("SELECT name FROM customers"), TaskProblem.WHOLE_TABLE),
        (ScriptedSql("SELECT a.id FROM orders a JOIN orders b WHERE a.id > 0"), TaskProblem.WHOLE_TABLE),
        (ScriptedSql("SELECT 7 FROM orders WHERE id > 0 LIMIT 1"), TaskProblem.CONSTANT),
        (ScriptedSql("SELECT nme FROM customers WHERE id > 3"), TaskProblem.NO_GOLD),
        (ScriptedSql("DROP TABLE customers"), TaskProblem.NO_GOLD),
        (ScriptedSql(question="Sales?"), TaskProblem.BAD_INSTRUCTION),
        (ScriptedSql(question=f"What does {TOP} return?"), TaskProblem.LEAK),
        (ScriptedSql(again=(TOP.replace("> 5", "> 6"),)), TaskProblem.AMBIGUOUS),
        (ScriptedSql(again=("",)), TaskProblem.AMBIGUOUS),
        (ScriptedSql(again=(TOP, "SELECT 1", "SELECT 2")), TaskProblem.AMBIGUOUS),
        (ScriptedSql(question=Failure(ModelFailureKind.BAD_REQUEST, "no")), TaskProblem.MODEL_FAILED),
    ]
    async with shop(tmp_path) as derive:
        for generator, problem in cases:
            derived = await derive(generator)
            assert derived.tasks == ()
            assert {one.findings[0].problem for one in derived.rejected} == {problem}


@pytest.mark.promise("tasks:text2sql:rejected")
async def test_a_third_solution_decides_after_a_disagreement(tmp_path: Path) -> None:
    async with shop(tmp_path) as derive:
        derived = await derive(ScriptedSql(again=("SELECT 1", TOP, TOP)))
    assert [task.metadata["samples"] for task in derived.tasks] == [3]
    assert [task.metadata["agreed"] for task in derived.tasks] == [2]


@pytest.mark.promise("tasks:text2sql:order")
async def test_order_counts_only_if_the_question_asks_for_it(tmp_path: Path) -> None:
    shuffled = f"SELECT * FROM ({TOP}) ORDER BY 1"
    async with shop(tmp_path) as derive:
        assert (await derive(ScriptedSql(again=(shuffled,)))).tasks == ()
        (task,) = (await derive(ScriptedSql(again=(shuffled,), ordered=False))).tasks
    assert {predicate.relation for predicate in task.verifier} == {TaskRelation.SAME_ROWS}


@pytest.mark.promise("tasks:text2sql:blind")
async def test_who_solves_again_sees_neither_the_query_nor_its_result(tmp_path: Path) -> None:
    generator = ScriptedSql()
    async with shop(tmp_path) as derive:
        (task,) = (await derive(generator)).tasks
    blind = [one for one in generator.requests if isinstance(one, IndependentSolutionRequest)]
    assert [one.sample for one in blind] == [1, 2]
    for request in blind:
        told = msgspec.json.encode(request).decode()
        assert TOP not in told
        assert str(task.verifier[0].expected[0][1]) not in told.replace('"rows":', "")
    assert TOP not in task.instruction


def ran(number: int, query: str, verdict: Verdict = Verdict.NEW) -> Node:
    """Return a node that ran a query."""
    return Node(
        id=f"node_{number}",
        parent=None,
        depth=1,
        position=number,
        intent="query",
        action=Action("sql_execute", {"query": query}),
        outcome=ActionOutcome(Observation((Text("rows"),))),
        verdict=verdict,
    )


@pytest.mark.promise("tasks:text2sql:tree")
async def test_queries_of_the_tree_come_first_and_their_siblings_must_fail(tmp_path: Path) -> None:
    sibling = TOP.replace("> 5", "> 9")
    nodes = (
        ran(1, "SELECT * FROM orders LIMIT 5"),
        ran(2, TOP),
        ran(3, "SELECT broken", Verdict.ERROR),
        ran(4, sibling),
    )
    async with shop(tmp_path) as derive:
        (task,) = (await derive(ScriptedSql(), *nodes)).tasks
    assert task.gold.answer == TOP
    assert task.sources == ("node_2",)
    assert {"sibling/node_1", "sibling/node_4"} <= {attempt.name for attempt in task.wrong}


@pytest.mark.promise("tasks:derive:resume")
async def test_a_run_that_was_killed_after_any_entry_derives_the_same_and_repeats_no_call(
    tmp_path: Path,
) -> None:
    current = Current()
    async with text2sql(shop_database(tmp_path / "shop.db"), current, max_tasks=2) as kind:
        current.answering, whole = OfflineTasks(), Page()
        derived = await kind.derive(seed_tree(), whole)
        checks = [await check_task(task, kind, whole) for task in derived.tasks]
        keys = list(whole.keys())
        for kept in range(len(keys) + 1):
            current.answering = again = OfflineTasks()
            page = Page({key: msgspec.json.encode(whole.recall(key, object)) for key in keys[:kept]})
            repeated = await kind.derive(seed_tree(), page)
            assert msgspec.json.encode(repeated) == msgspec.json.encode(derived)
            assert [await check_task(task, kind, page) for task in repeated.tasks] == checks
            asked = sum(key.endswith(("/propose", "/instruct")) or "/solve/" in key for key in keys[:kept])
            assert len(again.requests) == derived.usage.calls - asked


@pytest.mark.promise("tasks:derive:unusable")
async def test_a_database_that_is_gone_rejects_its_tasks_with_the_reason(tmp_path: Path) -> None:
    database = shop_database(tmp_path / "shop.db")
    async with text2sql(database, OfflineTasks()) as kind:
        database.unlink()
        derived = await kind.derive(seed_tree(), Page())
    assert derived.tasks == ()
    assert [one.findings[0].problem for one in derived.rejected] == [TaskProblem.UNVERIFIABLE]
