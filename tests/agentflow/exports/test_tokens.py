"""Rows of exact tokens, and tables of model calls."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.exports import Dropped, DropReason, ExportContext, ExportRow, Take, export_run
from agentflow.exports._native import native_rows, token_rows
from agentflow.inspection import SeedRecord
from agentflow.trace import TokenCall, Tokens, Voice
from tests.agentflow.exports._trees import answer, node, rows, tree_of


def call(id: str, prompt: tuple[int, ...], sampled: tuple[int, ...]) -> TokenCall:
    tokens = Tokens(prompt=prompt, sampled=sampled, logprobs=(-0.5,) * len(sampled))
    return TokenCall(id=id, voice=Voice(role="planner"), tokens=tokens)


def episode(id: str, calls: tuple[TokenCall, ...], reward: float | None = 1.0, leaf: str = "") -> SeedRecord:
    return SeedRecord(
        tree=tree_of((), "", id=id, group="g"), is_episode=True, calls=calls, reward=reward, leaf=leaf
    )


@st.composite
def conversations(draw: st.DrawFn) -> SeedRecord:
    """Generate an episode whose calls continue, repeat or abandon earlier ones; each sampled token is unique."""
    fresh = iter(range(1_000, 9_000))
    calls: list[TokenCall] = []
    for number in range(draw(st.integers(1, 6))):
        before: tuple[int, ...] = ()
        if calls and draw(st.booleans()):
            earlier = draw(st.sampled_from(calls)).tokens
            before = (*earlier.prompt, *earlier.sampled)
        prompt = (*before, *draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
        sampled = tuple(next(fresh) for _ in range(draw(st.integers(1, 3))))
        calls.append(call(str(number), prompt, sampled))
    return episode("e", tuple(calls))


def labels(trees: list[SeedRecord], take: Take = Take.ALL) -> Counter[int]:
    found_rows = [
        one.values for one in token_rows(trees, ExportContext(take=take)) if isinstance(one, ExportRow)
    ]
    for row in found_rows:
        assert len(row["input_ids"]) == len(row["labels"])
        assert all(label in (-100, own) for own, label in zip(row["input_ids"], row["labels"], strict=True))
    found: Counter[int] = Counter()
    for row in found_rows:
        found.update(label for label in row["labels"] if label != -100)
    return found


@pytest.mark.promise("exports:tokens")
@given(tree=conversations())
def test_each_sampled_token_is_one_label(tree: SeedRecord) -> None:
    drawn = Counter(token for one in tree.calls for token in one.tokens.sampled)
    assert labels([tree]) == drawn


@pytest.mark.promise("exports:tokens")
def test_leaves_of_a_tree_train_their_shared_call_once() -> None:
    shared = call("1", (1,), (2,))
    leaves = [
        episode("g/node_a", (shared, call("2", (1, 2, 3), (4,))), leaf="node_a"),
        episode("g/node_b", (shared, call("2", (1, 2, 5), (6,))), leaf="node_b"),
    ]
    assert labels(leaves) == {2: 1, 4: 1, 6: 1}
    draws = [episode("g/0", (shared,)), episode("g/1", (shared,))]
    assert labels(draws) == {2: 2}  # drawn twice


@pytest.mark.promise("exports:tokens")
def test_rows_of_wrong_episodes_are_left_out_by_default() -> None:
    found = [
        episode("a", (call("1", (1,), (2,)),)),
        episode("b", (call("1", (1,), (3,)),), 0.0),
        episode("c", (), None),
        replace(episode("d", (call("1", (1,), (4,)),), 1.4), answer_score=0.6),
        replace(episode("e", (call("1", (1,), (5,)),), 1.4), answer_score=1.0),
    ]
    dropped = {
        one.id: one.reason
        for one in token_rows(found, ExportContext(take=Take.CORRECT))
        if isinstance(one, Dropped)
    }
    wrong = DropReason.NOT_CORRECT
    assert dropped == {"b": wrong, "c": DropReason.NO_SCORE, "d": wrong}
    dropped = {
        one.id: one.reason
        for one in token_rows(found, ExportContext(take=Take.ALL))
        if isinstance(one, Dropped)
    }
    assert dropped == {"c": DropReason.NO_TOKENS}


@pytest.mark.promise("exports:native")
@given(tree=conversations())
def test_calls_have_their_tokens_and_their_place_in_the_rows(tree: SeedRecord) -> None:
    rows: list[dict[str, Any]] = [
        one.values for one in token_rows([tree], ExportContext(take=Take.ALL)) if isinstance(one, ExportRow)
    ]
    calls: list[dict[str, Any]] = [
        one.values
        for one in native_rows([tree], ExportContext())
        if isinstance(one, ExportRow) and one.table == "calls"
    ]
    assert [one["call_id"] for one in calls] == [one.id for one in tree.calls]
    for one in calls:
        labels_of = tuple(int(label) for label in rows[int(one["row"])]["labels"])
        assert labels_of[int(one["start"]) : int(one["stop"])] == one["sampled_ids"]
        assert len(one["logprobs"]) == len(one["sampled_ids"])


@pytest.mark.promise("exports:planner_tokens")
def test_the_planner_of_a_synthesis_is_trained_on_the_calls_that_led_to_answers(
    sampled: Path, tmp_path: Path
) -> None:
    folders = {take: tmp_path / take for take in Take}
    for take, folder in folders.items():
        export_run(sampled, "trl-sft-tokens", folder, take=take)
    found = {
        take: [[own for own in row["labels"] if own != -100] for row in rows(folder / "train.jsonl")]
        for take, folder in folders.items()
    }
    export_run(sampled, "native", tmp_path / "native")
    calls = rows(tmp_path / "native/calls.jsonl")
    assert {call["role"] for call in calls} == {"planner"}
    assert sorted(found[Take.ALL]) == sorted(call["sampled_ids"] for call in calls)
    assert len(found[Take.ALL]) > len(found[Take.CORRECT]) > len(found[Take.BEST]) > 0
    assert all(labels in found[Take.ALL] for labels in found[Take.CORRECT])
    dropped = [one["reason"] for one in rows(folders[Take.CORRECT] / "dropped.jsonl")]
    assert dropped.count("off_path") == len(found[Take.ALL]) - len(found[Take.CORRECT])


@pytest.mark.promise("exports:planner_tokens")
def test_a_call_is_trained_if_a_child_of_its_node_is_on_the_path_of_a_right_answer() -> None:
    nodes = (
        *(node("r", None, 0), node("a", "r", 1), node("b", "a", 2)),
        *(node("c", "a", 2, position=1), node("d", "c", 3)),
    )
    calls = tuple(
        TokenCall(
            id=f"plan/{spot}/0",
            voice=Voice(role="planner"),
            tokens=Tokens(prompt=(1, number), sampled=(10 + number,), logprobs=(-1.0,)),
        )
        for number, spot in enumerate(("root", "0", "0-0", "0-1"))
    )
    answers = (answer(nodes, "good", "b"), answer(nodes, "bad", "d", right=False))
    tree = SeedRecord(tree=tree_of(nodes, ""), is_episode=False, answers=answers, calls=calls)
    assert labels([tree], Take.CORRECT) == Counter([10, 11])
    assert labels([tree]) == Counter([10, 11, 12, 13])
    assert [
        one for one in token_rows([tree], ExportContext(take=Take.CORRECT)) if isinstance(one, Dropped)
    ] == [
        Dropped("s", "bad", DropReason.NOT_CORRECT),
        Dropped("s", "t/plan/0-0/0", DropReason.OFF_PATH),
        Dropped("s", "t/plan/0-1/0", DropReason.OFF_PATH),
    ]
