"""A duplicate is never tried twice, and never dropped silently."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.engine import GrowthSettings
from agentflow.engine._proposals import TakenActions
from agentflow.sandbox import SandboxSettings
from agentflow.trace import Action, PlanRequest, Proposal, Seed
from tests.agentflow.engine._functions import SEED, PlanBy, fresh_page, grower


def search(words: str) -> Action:
    return Action("rag_search", {"query": words})


@pytest.mark.promise("growth:same_plan")
async def test_a_repetitive_planner_leaves_nodes_that_report_nothing_new_to_try() -> None:
    planner = PlanBy(lambda _: [Proposal("", "bash_run", {"command": "echo once"})])
    async with grower(planner, settings=GrowthSettings(max_depth=3)) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert len(tree.nodes) == 2
    assert list(tree.stalled.values()) == [
        "1 of 2 children: nothing new to try",
        "2 of 2 children: nothing new to try",
    ]
    assert tree.duplicates == 2 + 3


@pytest.mark.promise("growth:asked_again")
async def test_for_a_duplicate_the_planner_is_asked_again_with_the_taken_actions() -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        return [
            Proposal("", "bash_run", {"command": f"echo {len(request.taken)}"}) for _ in range(request.count)
        ]

    planner = PlanBy(plan)
    async with grower(planner, settings=GrowthSettings(max_depth=1, branching_factor=3)) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert [node.action and node.action.arguments["command"] for node in tree.nodes[1:]] == [
        "echo 0", "echo 1", "echo 2",
    ]  # fmt: skip
    assert [request.count for request in planner.requests] == [3, 2, 1]


@pytest.mark.promise("growth:refused")
async def test_invalid_proposals_are_asked_for_again_with_the_reason() -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        if not request.refused:
            return [Proposal("", "fly", {}), Proposal("", "bash_run", {"cmd": "ls"})]
        return [Proposal("", "bash:run", {"command": f"echo {n}"}) for n in range(request.count)]

    planner = PlanBy(plan)
    async with grower(planner, settings=GrowthSettings(max_depth=1)) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert planner.requests[1].refused[0] == "there is no tool 'fly'"
    assert "command" in planner.requests[1].refused[1]
    assert [node.action and node.action.tool for node in tree.nodes] == [None, "bash_run", "bash_run"]


@pytest.mark.promise("growth:kwargs")
async def test_arguments_fixed_by_a_seed_override_the_planners_whose_tools_lack_them() -> None:
    seed = Seed(index=0, id="s", content="x", kwargs={"timeout": 7, "company": "none of the tools'"})
    planner = PlanBy(lambda r: [Proposal("", "bash_run", {"command": "echo 1", "timeout": 1})] * r.count)
    async with grower(planner, settings=GrowthSettings(max_depth=1, branching_factor=1)) as growing:
        tree = await growing.grow(seed, fresh_page())
    assert all("timeout" not in card.schema["properties"] for card in planner.requests[0].tools)
    assert planner.requests[0].kwargs == seed.kwargs
    assert tree.nodes[1].action == Action("bash_run", {"command": "echo 1", "timeout": 7})


@pytest.mark.promise("growth:kwargs")
async def test_a_seed_may_fix_arguments_by_documented_names(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            database.execute(f"CREATE TABLE pets AS SELECT '{name}' AS kind")
            database.commit()
    seed = Seed(index=0, id="s", content="How many?", kwargs={"db_id": "dogs"})
    planner = PlanBy(
        lambda r: [Proposal("", "sql_execute", {"query": "SELECT kind FROM pets", "database": "cats"})]
    )
    settings = SandboxSettings(backends={"sql": {"databases_dir": str(tmp_path)}})
    growth = GrowthSettings(max_depth=1, branching_factor=1)
    tools = ("sql_execute", "sql_schema")
    async with grower(planner, settings=growth, backends=("sql",), tools=tools, sandbox=settings) as growing:
        tree = await growing.grow(seed, fresh_page())
    assert "dogs" in tree.nodes[1].observation.text
    assert tree.nodes[1].action == Action(
        "sql_execute", {"query": "SELECT kind FROM pets", "database": "dogs"}
    )
    for card in planner.requests[0].tools:
        assert not {"database", "db_id"} & set(card.schema["properties"])


@pytest.mark.promise("growth:near_duplicates")
@pytest.mark.parametrize(
    ("one", "other", "duplicate"),
    [
        ("height of the old lighthouse", "Height of the  old lighthouse", True),
        ("old lighthouse height of the", "height of the old lighthouse", True),
        ("heights of the old lighthouse", "height of the old lighthouse", True),
        ("harvest of 1911", "harvest of 1912", False),
        ("height of the old lighthouse", "keeper of the old bridge", False),
    ],
)
def test_nearly_equal_searches_are_duplicates_of_siblings(one: str, other: str, duplicate: bool) -> None:
    assert TakenActions(0.9, ["rag_search"]).is_duplicate(search(one), [search(other)]) is duplicate


@pytest.mark.promise("growth:near_duplicates")
def test_code_is_compared_exactly() -> None:
    one, other = (Action("code_run", {"code": f"frame.column_{name}.mean()"}) for name in "ab")
    assert not TakenActions(0.9, ["rag_search"]).is_duplicate(one, [other])


@pytest.mark.promise("growth:exact_duplicates")
@given(st.text(), st.dictionaries(st.text(max_size=3), st.integers() | st.text(), max_size=3))
def test_an_action_is_a_duplicate_however_it_is_written(text: str, more: dict[str, object]) -> None:
    taken = TakenActions(2, [])
    taken.add(Action("t", {"a": text, "b": None, **more}))
    assert (
        taken.is_duplicate(Action("t", dict(reversed({"a": f" {text}\n", **more}.items()))), [])
        or "a" in more
    )
