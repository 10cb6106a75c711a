"""Conversations as TRL, OpenAI, LLaMA-Factory, axolotl and verl read them."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from agentflow.exports import Dropped, DropReason, ExportContext, ExportRow, Take
from agentflow.exports._conversations import axolotl, conversation_of, openai, sharegpt, trl_sft, verl_sft
from agentflow.inspection import SeedRecord
from agentflow.models import ToolSpec
from agentflow.trace import ActionOutcome, Blob, Observation, Text, Verdict
from tests.agentflow.exports._trees import answer, node, tree_of, trees

TOOLS = (
    ToolSpec("rag_search", "Search.", {"type": "object", "properties": {"query": {"type": "string"}}}),
    ToolSpec("bash_run", "Run.", {"type": "object", "properties": {"bash_run": {"type": "integer"}}}),
)
Rows = Callable[[Sequence[SeedRecord], ExportContext], Iterator[ExportRow | Dropped]]


def chats(take: Take = Take.ALL, *, images: bool = False) -> ExportContext:
    return ExportContext(tools=TOOLS, take=take, has_images=images)


def split(found: Iterator[ExportRow | Dropped]) -> tuple[list[dict[str, Any]], dict[str, DropReason]]:
    rows: list[dict[str, Any]] = []
    dropped: dict[str, DropReason] = {}
    for one in found:
        if isinstance(one, Dropped):
            dropped[one.id] = one.reason
        else:
            rows.append(one.values)
    return rows, dropped


def example() -> SeedRecord:
    """Return a tree with a path on which the second of three calls failed."""
    nodes = (node("r", None, 0), node("a", "r", 1), node("b", "a", 2, new=False), node("c", "b", 3))
    return SeedRecord(
        tree=tree_of(nodes),
        is_episode=False,
        answers=(answer(nodes, "q", "c"),),
    )


@pytest.mark.promise("exports:paths")
@given(tree=trees())
def test_every_answer_is_in_a_row_or_has_a_reason(tree: SeedRecord) -> None:
    formats: tuple[Rows, ...] = (
        trl_sft,
        openai,
        sharegpt,
    )
    for make in formats:
        for take in Take:
            rows, dropped = split(make([tree], chats(take)))
            texts = json.dumps(rows)
            for one in tree.answers:
                assert (f"Question {one.id}?" in texts) != (one.id in dropped), (make, take)
            assert tree.answers or dropped == {"t": DropReason.NO_QUESTION}
            assert take is Take.ALL or all(one.right or one.id in dropped for one in tree.answers)
            rights = [one for one in tree.answers if one.right]
            assert (
                take is not Take.BEST
                or len(rights) - 1 == sum(reason is DropReason.NOT_BEST for reason in dropped.values())
                or not rights
            )


@pytest.mark.promise("exports:trl_sft")
@given(tree=trees())
def test_completions_for_trl_hold_each_message_of_the_model_once_and_no_masked_one(tree: SeedRecord) -> None:
    rows, _ = split(trl_sft([tree], chats()))
    for one in tree.answers:
        messages = conversation_of(tree, one)
        own = [row for row in rows if row["id"].partition("/")[0] == one.id]
        trained = [said for row in own for said in row["completion"] if said["role"] == "assistant"]
        wanted = [said for said in messages if said["role"] == "assistant" and said.get("trainable", True)]
        assert trained == wanted
        for row in own:
            whole = row["prompt"] + row["completion"]
            plain = [
                {name: value for name, value in said.items() if name != "trainable"} for said in messages
            ]
            assert whole == plain[: len(whole)]
            assert row["completion"][-1]["role"] == row["completion"][0]["role"] == "assistant"


@pytest.mark.promise("exports:sharegpt")
@given(tree=trees())
def test_roles_for_llama_factory_alternate_and_calls_are_lists_of_json(tree: SeedRecord) -> None:
    rows, dropped = split(sharegpt([tree], chats()))
    for row in rows:
        turns = row["conversations"]
        assert len(turns) % 2 == 0
        assert all(turn["from"] in ("human", "observation") for turn in turns[::2])
        assert all(turn["from"] in ("gpt", "function_call") for turn in turns[1::2])
        for turn in turns:
            if turn["from"] == "function_call":
                calls = json.loads(turn["value"])
                assert all(set(call) == {"name", "arguments"} for call in calls)
                assert all(isinstance(call["arguments"], dict) for call in calls)
        assert [tool["function"]["name"] for tool in json.loads(row["tools"])] == ["rag_search", "bash_run"]
    masked = {f"{one.id}/{own}" for one in tree.answers for own in one.nodes if _is_masked(tree, own)}
    assert {id for id, reason in dropped.items() if reason is DropReason.MASKED} == masked


def _is_masked(tree: SeedRecord, own: str) -> bool:
    found = tree.tree.by_id[own]
    return found.action is not None and found.verdict is not Verdict.NEW


@pytest.mark.promise("exports:openai")
def test_openai_gets_arguments_as_text_and_masked_messages_with_weight_zero() -> None:
    rows, _ = split(openai([example()], chats()))
    messages = rows[0]["messages"]
    assert [said.get("weight", 1) for said in messages] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {
        "query": "about a",
        "rag_search": 1,
    }
    assert set(messages[2]) == {"role", "tool_call_id", "content"}
    assert rows[0]["tools"][1]["function"]["parameters"]["properties"] == {"bash_run": {"type": "integer"}}


@pytest.mark.promise("exports:masked")
def test_a_failed_call_is_masked_split_off_or_left_out() -> None:
    rows, _ = split(trl_sft([example()], chats()))
    assert [(row["id"], len(row["prompt"]), len(row["completion"])) for row in rows] == [
        ("q/0", 1, 1),
        ("q/1", 5, 3),
    ]
    rows, dropped = split(sharegpt([example()], chats()))
    assert [turn["from"] for turn in rows[0]["conversations"]] == [
        *("human", "function_call", "observation", "function_call", "observation", "gpt"),
    ]
    assert dropped == {"q/b": DropReason.MASKED}


@pytest.mark.promise("exports:images")
def test_images_are_parts_or_placeholders_beside_their_files() -> None:
    image = Blob("c4a7", "image/png")
    nodes = (node("r", None, 0), node("a", "r", 1, images=(image,)))
    tree = SeedRecord(tree=tree_of(nodes), is_episode=False, answers=(answer(nodes, "q", "a"),))
    (row,) = [one for one in trl_sft([tree], chats(images=True)) if isinstance(one, ExportRow)]
    text = {"type": "text", "text": "Seen at a."}
    assert row.values["completion"][1]["content"] == [text, {"type": "image"}]
    assert (row.values["images"], row.images) == (["images/c4a7.png"], ("images/c4a7.png",))
    rows, _ = split(sharegpt([tree], chats(images=True)))
    assert rows[0]["conversations"][2]["value"] == "Seen at a.\n<image>"
    rows, _ = split(openai([tree], chats(images=True)))
    part = {"type": "image_url", "image_url": {"url": "images/c4a7.png"}}
    assert rows[0]["messages"][2]["content"] == [text, part]


@pytest.mark.promise("exports:sharegpt")
def test_text_that_looks_like_an_image_does_not_count_as_one() -> None:
    nodes = (node("r", None, 0), node("a", "r", 1))
    hostile = replace(node("a", "r", 1), outcome=ActionOutcome(Observation((Text("<image>"),))))
    tree = SeedRecord(
        tree=tree_of((nodes[0], hostile)),
        is_episode=False,
        answers=(answer(nodes, "q", "a"),),
    )
    rows, _ = split(sharegpt([tree], chats()))
    assert rows[0]["conversations"][2]["value"] == "[image]"


@pytest.mark.promise("exports:axolotl")
def test_axolotl_gets_a_mask_for_each_message() -> None:
    rows, _ = split(axolotl([example()], chats()))
    messages = rows[0]["messages"]
    assert [said["training"] for said in messages] == [False, True, False, False, False, True, False, True]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {
        "query": "about a",
        "rag_search": 1,
    }
    assert len(json.loads(rows[0]["tools"])) == 2


@pytest.mark.promise("exports:verl")
def test_tools_and_calls_for_verl_are_text_in_the_notation_of_hermes() -> None:
    rows, _ = split(verl_sft([example()], chats()))
    system, user, call, *_ = rows[0]["messages"]
    assert '\n<tools>\n{"type": "function", "function": {"name": "rag_search"' in system["content"]
    assert user == {"role": "user", "content": "Question q?"}
    assert call["content"] == (
        'Look for a.\n<tool_call>\n{"name": "rag_search", "arguments": {"query": "about a", "rag_search": 1}}\n</tool_call>'
    )
