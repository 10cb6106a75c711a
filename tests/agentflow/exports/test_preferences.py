"""Rows that compare messages, and steps with labels."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from agentflow.exports import Dropped, DropReason, ExportContext, ExportRow
from agentflow.exports._preferences import trl_dpo, trl_kto, trl_prm
from agentflow.inspection import AnswerRecord, SeedRecord
from agentflow.trace import ActionOutcome, Observation, Text, Verdict
from tests.agentflow.exports._trees import answer, node, tree_of, trees

EXPORT = ExportContext()


def values(found: Iterator[ExportRow | Dropped]) -> list[dict[str, Any]]:
    return [one.values for one in found if isinstance(one, ExportRow)]


def reasons(found: Iterator[ExportRow | Dropped]) -> dict[str, DropReason]:
    return {one.id: one.reason for one in found if isinstance(one, Dropped)}


def episode(name: str, score: float | None, *tools: str) -> SeedRecord:
    """Return an episode of a task that calls tools and answers with its name."""
    nodes = [node(f"{name}0", None, 0)]
    for depth, tool in enumerate(tools, 1):
        nodes.append(
            replace(node("x", "x", depth, tool=tool), id=f"{name}{depth}", parent=f"{name}{depth - 1}")
        )
    own = AnswerRecord(
        id=name,
        question="When?",
        answer=name,
        nodes=tuple(one.id for one in nodes),
        score=score,
        right=score == 1.0,
    )
    return SeedRecord(
        tree=tree_of(tuple(nodes), "When?", id=name, group="task"), is_episode=True, answers=(own,)
    )


@pytest.mark.promise("exports:preferences")
@given(tree=trees())
def test_each_action_of_a_tree_is_compared_labelled_and_on_a_path(tree: SeedRecord) -> None:
    actions = {one.id: one for one in tree.nodes if one.action is not None}
    labelled = {row["id"]: row["label"] for row in values(trl_kto([tree], EXPORT))}
    assert labelled == {id: one.verdict is Verdict.NEW for id, one in actions.items()}
    compared = set[str]()
    for row in values(trl_dpo([tree], EXPORT)):
        chosen, rejected = row["id"].split("/")
        assert actions[chosen].parent == actions[rejected].parent
        assert actions[chosen].verdict is Verdict.NEW
        assert actions[rejected].verdict is not Verdict.NEW
        assert row["prompt"][0] == {"role": "user", "content": "Explore it."}
        assert len(row["prompt"]) == 2 * actions[chosen].depth - 1
        compared |= {chosen, rejected}
    assert compared | set(reasons(trl_dpo([tree], EXPORT))) == set(actions)
    paths = {row["id"]: row for row in values(trl_prm([tree], EXPORT))}
    parents = {one.parent for one in tree.nodes}
    assert set(paths) == {id for id in actions if id not in parents}
    for id, row in paths.items():
        assert len(row["completions"]) == len(row["labels"]) == actions[id].depth
        assert row["labels"][-1] is (actions[id].verdict is Verdict.NEW)


@pytest.mark.promise("exports:preferences")
def test_episodes_of_a_task_are_compared_where_they_differ() -> None:
    found = [
        episode("1834", 1.0, "rag_search"),
        episode("1835", 0.0, "rag_search"),
        episode("no", 0.0, "bash_run"),
    ]
    rows = values(trl_dpo(found, EXPORT))
    first, last = rows
    assert len(first["prompt"]) == 1
    assert first["chosen"][0]["tool_calls"][0]["function"]["name"] == "rag_search"
    assert first["rejected"][0]["tool_calls"][0]["function"]["name"] == "bash_run"
    assert len(last["prompt"]) == 3
    assert (last["chosen"][0]["content"], last["rejected"][0]["content"]) == ("1834", "1835")
    labels = [row["label"] for row in values(trl_kto(found, EXPORT))]
    assert labels == [False, True, False, False]
    assert list(reasons(trl_kto(found, EXPORT)).values()) == [DropReason.UNDECIDED]
    steps = {row["id"]: row["labels"] for row in values(trl_prm(found, EXPORT))}
    assert steps == {"1834": [True, True], "1835": [True, False], "no": [True, False]}


@pytest.mark.promise("exports:preferences")
def test_unscored_episodes_are_left_out_with_a_reason() -> None:
    found = [episode("1834", None, "rag_search"), episode("1835", None)]
    expected = (
        (trl_dpo, ["undecided", "undecided", "no_sibling"]),
        (trl_kto, ["undecided"] * 3),
        (trl_prm, ["no_score"] * 2),
    )
    for make, left_out in expected:
        assert values(make(found, EXPORT)) == []
        assert list(reasons(make(found, EXPORT)).values()) == left_out


@pytest.mark.promise("exports:grounds")
@pytest.mark.parametrize(
    ("first", "second", "ground"),
    [
        ([1.0], [0.0], "reward"),
        ([1.0, 0.0], [0.0, 0.0], "reward"),
        ([1.0, 0.0], [1.0, 0.0, 0.0], ""),
        ([0.7], [0.2], "reward"),
        ([1.0], [1.0], ""),
        ([1.0], [None], ""),
    ],
    ids=["right_or_wrong", "sometimes_right", "overlapping", "partly_right", "equal", "unscored"],
)
def test_rewards_order_two_messages_only_if_no_episode_contradicts_it(
    first: list[float | None], second: list[float | None], ground: str
) -> None:
    tools = {"rag_search": first, "bash_run": second}
    found = [
        episode(f"{tool}{number}", score, tool)
        for tool, scores in tools.items()
        for number, score in enumerate(scores)
    ]
    rows = [row for row in values(trl_dpo(found, EXPORT)) if len(row["prompt"]) == 1]
    assert [row["ground"] for row in rows] == ([ground] if ground else [])
    for row in rows:
        assert row["chosen"][0]["tool_calls"][0]["function"]["name"] == "rag_search"


@pytest.mark.promise("exports:grounds")
def test_a_failed_call_is_rejected_beside_one_of_equal_reward_and_never_chosen() -> None:
    def failing(name: str, score: float, tool: str = "bash_run") -> SeedRecord:
        tree = episode(name, score, tool)
        nodes = (tree.nodes[0], replace(tree.nodes[1], verdict=Verdict.ERROR))
        return replace(tree, tree=replace(tree.tree, nodes=nodes))

    good = episode("a", 0.0, "rag_search")
    [row] = [row for row in values(trl_dpo([good, failing("b", 0.0)], EXPORT)) if len(row["prompt"]) == 1]
    assert (row["id"], row["ground"]) == ("a/1/b/1", "verdict")
    for pair in ([good, failing("b", 1.0)], [failing("c", 0.0, "rag_get"), failing("b", 1.0)]):
        assert [row for row in values(trl_dpo(pair, EXPORT)) if len(row["prompt"]) == 1] == []
        assert reasons(trl_dpo(pair, EXPORT))["b/1"] == DropReason.UNDECIDED
    labels = {row["id"]: row["label"] for row in values(trl_kto([good, failing("b", 1.0)], EXPORT))}
    assert "b/1" not in labels


def branching() -> SeedRecord:
    """Return a tree with four actions at its root; a pair needs one, cites a text that another also shows, and a third failed."""
    nodes = (
        node("r", None, 0),
        node("needed", "r", 1),
        node("other", "r", 1),
        replace(
            node("copy", "r", 1), outcome=ActionOutcome(Observation((Text("It says: Seen at needed."),)))
        ),
        node("failed", "r", 1, new=False),
        node("below", "copy", 2),
    )
    own = replace(
        answer(nodes, "q", "needed"), whole_path=("r", "needed"), quotes=("Seen at needed.",), score=0.5
    )
    return SeedRecord(tree=tree_of(nodes), is_episode=False, answers=(own,))


@pytest.mark.promise("exports:grounds")
def test_siblings_in_a_tree_are_ordered_by_verdict_and_by_the_evidence_of_written_pairs() -> None:
    tree = branching()
    rows = {row["id"]: row["ground"] for row in values(trl_dpo([tree], EXPORT))}
    assert rows == {"needed/other": "evidence", "needed/failed": "verdict"}
    assert reasons(trl_dpo([tree], EXPORT)) == {
        "copy": DropReason.UNDECIDED,
        "below": DropReason.NO_SIBLING,
    }
    surplus = replace(tree.answers[0], right=False, surplus=True, nodes=("r", "other"), quotes=())
    with_surplus = replace(tree, answers=(*tree.answers, surplus))
    assert {row["id"] for row in values(trl_dpo([with_surplus], EXPORT))} == {"needed/failed"}
    without = replace(tree, answers=())
    assert [row["ground"] for row in values(trl_dpo([without], EXPORT))] == ["verdict"]
    assert reasons(trl_dpo([without], EXPORT))["copy"] == DropReason.SAME_VALUE


@pytest.mark.promise("exports:grounds")
@given(tree=trees())
def test_each_pair_says_its_ground_and_everything_else_is_counted(tree: SeedRecord) -> None:
    answers = tuple(replace(one, whole_path=one.nodes) for one in tree.answers)
    tree = replace(tree, answers=answers)
    needed = {own for one in answers for own in one.nodes if one.right}
    in_pairs = set[str]()
    for row in values(trl_dpo([tree], EXPORT)):
        chosen, rejected = (tree.tree.by_id[id] for id in row["id"].split("/"))
        in_pairs |= {chosen.id, rejected.id}
        assert chosen.verdict is Verdict.NEW
        if row["ground"] == "verdict":
            assert rejected.verdict is not Verdict.NEW
        else:
            assert (row["ground"], chosen.id in needed) == ("evidence", True)
            below = {one.id for one in tree.nodes if rejected in tree.tree.path(one.id)}
            assert not below & {own for one in answers for own in one.nodes}
    assert in_pairs.isdisjoint(left_out := reasons(trl_dpo([tree], EXPORT)))
    assert in_pairs | set(left_out) == {one.id for one in tree.nodes if one.action is not None}
