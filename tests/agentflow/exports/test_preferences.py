"""Rows that compare messages, and steps with labels."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from agentflow.exports._preferences import PreferenceFormats
from agentflow.exports._records import ExportAnswer, ExportTree
from agentflow.exports._rows import Dropped, DropReason, ExportRow
from tests.agentflow.exports._trees import node, trees

FORMATS = PreferenceFormats({}, images=False)


def values(found: Iterator[ExportRow | Dropped]) -> list[dict[str, Any]]:
    return [one.values for one in found if isinstance(one, ExportRow)]


def reasons(found: Iterator[ExportRow | Dropped]) -> dict[str, DropReason]:
    return {one.id: one.reason for one in found if isinstance(one, Dropped)}


def episode(name: str, score: float | None, *tools: str) -> ExportTree:
    """Return an episode of a task that calls tools and answers with its name."""
    nodes = [node(f"{name}0", None, 0)]
    for depth, tool in enumerate(tools, 1):
        nodes.append(
            replace(
                node("x", "x", depth, tool=tool), node_id=f"{name}{depth}", parent_id=f"{name}{depth - 1}"
            )
        )
    own = ExportAnswer(
        id=name,
        question="When?",
        answer=name,
        nodes=tuple(one.node_id for one in nodes),
        score=score,
        right=score == 1.0,
    )
    return ExportTree(
        id=name, group="task", text="When?", nodes=tuple(nodes), is_episode=True, answers=(own,)
    )


@pytest.mark.promise("exports:preferences")
@given(tree=trees())
def test_each_action_of_a_tree_is_compared_labelled_and_on_a_path(tree: ExportTree) -> None:
    actions = {one.node_id: one for one in tree.nodes if one.action is not None}
    labelled = {row["id"]: row["label"] for row in values(FORMATS.kto([tree]))}
    assert labelled == {id: one.trainable for id, one in actions.items()}
    compared = set[str]()
    for row in values(FORMATS.dpo([tree])):
        chosen, rejected = row["id"].split("/")
        assert actions[chosen].parent_id == actions[rejected].parent_id
        assert actions[chosen].trainable
        assert not actions[rejected].trainable
        assert row["prompt"][0] == {"role": "user", "content": "Explore it."}
        assert len(row["prompt"]) == 2 * actions[chosen].depth - 1
        compared |= {chosen, rejected}
    assert compared | set(reasons(FORMATS.dpo([tree]))) == set(actions)
    paths = {row["id"]: row for row in values(FORMATS.prm([tree]))}
    parents = {one.parent_id for one in tree.nodes}
    assert set(paths) == {id for id in actions if id not in parents}
    for id, row in paths.items():
        assert len(row["completions"]) == len(row["labels"]) == actions[id].depth
        assert row["labels"][-1] is actions[id].trainable


@pytest.mark.promise("exports:preferences")
def test_episodes_of_a_task_are_compared_where_they_differ() -> None:
    found = [
        episode("1834", 1.0, "rag_search"),
        episode("1835", 0.0, "rag_search"),
        episode("no", 0.0, "bash_run"),
    ]
    rows = values(FORMATS.dpo(found))
    first, last = rows
    assert len(first["prompt"]) == 1
    assert first["chosen"][0]["tool_calls"][0]["function"]["name"] == "rag_search"
    assert first["rejected"][0]["tool_calls"][0]["function"]["name"] == "bash_run"
    assert len(last["prompt"]) == 3
    assert (last["chosen"][0]["content"], last["rejected"][0]["content"]) == ("1834", "1835")
    labels = [row["label"] for row in values(FORMATS.kto(found))]
    assert labels == [False, True, False, False]
    assert list(reasons(FORMATS.kto(found)).values()) == [DropReason.UNDECIDED]
    steps = {row["id"]: row["labels"] for row in values(FORMATS.prm(found))}
    assert steps == {"1834": [True, True], "1835": [True, False], "no": [True, False]}


@pytest.mark.promise("exports:preferences")
def test_unscored_episodes_are_left_out_with_a_reason() -> None:
    found = [episode("1834", None, "rag_search"), episode("1835", None)]
    for make, reason in ((FORMATS.dpo, "undecided"), (FORMATS.kto, "undecided"), (FORMATS.prm, "no_score")):
        assert values(make(found)) == []
        assert set(reasons(make(found)).values()) == {reason}
