"""Conversations of any agent, as a gateway recorded them."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from msgspec.structs import replace

from agentflow.errors import ConfigurationError
from agentflow.exports import Dropped, DropReason, ExportContext, ExportRow, Take, export_run
from agentflow.exports._conversations import conversation_of, is_masked, openai, sharegpt, trl_sft, verl_sft
from agentflow.exports._preferences import trl_dpo, trl_kto, trl_prm
from agentflow.gateway import (
    AgentSettings,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeState,
    ExactAnswerer,
    GatewayCall,
    GatewaySettings,
    RecordedCall,
    RecordedEpisode,
)
from agentflow.inspection._recorded import agent_record, episode_records
from agentflow.models import ImagePart, Message, TextPart, ToolCall, ToolReply, ToolSpec
from agentflow.trace import Blob, Task
from tests.agentflow.exports._trees import rows
from tests.agentflow.gateway._conversations import TOOLS, Conversation
from tests.agentflow.gateway._engine import RandomEngine
from tests.agentflow.gateway._images import image
from tests.agentflow.gateway._registry import OWNER, ask, offers, registry_at


def recorded(
    *calls: RecordedCall, reward: float | None = 1.0, success: bool | None = None, id: str = "0/0"
) -> RecordedEpisode:
    """Return an episode with these calls."""
    task = Task(index=0, id="t", question="How many?", references=("2",))
    return RecordedEpisode(
        offer=EpisodeOffer(id=id, group="t@0", task=task),
        state=EpisodeState.USED,
        outcome=None if reward is None else EpisodeOutcome(reward=reward, success=success),
        calls=calls,
    )


def call(id: str, *messages: Message, answer: Message, parent: str = "", **more: Any) -> RecordedCall:  # noqa: ANN401 - any field
    """Return a recorded call."""
    given: dict[str, Any] = {
        "dialect": "chat",
        "trained": True,
        "delivered": True,
        "origin": "opening",
        "agent": "",
    }
    return RecordedCall(id=id, messages=messages, answer=answer, parent=parent, **{**given, **more})


def user(*parts: Any) -> Message:  # noqa: ANN401 - any part
    return Message("user", tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def said(*parts: Any) -> Message:  # noqa: ANN401 - any part
    return replace(user(*parts), role="assistant")


def looked(id: str = "c1", q: str = "light") -> ToolCall:
    return ToolCall(id, "look", {"q": q}, json.dumps({"q": q}))


def chats(*tools: ToolSpec, take: Take = Take.ALL) -> ExportContext:
    return ExportContext(tools=tools, take=take)


def values(found: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - rows of any format
    return [one.values for one in found if isinstance(one, ExportRow)]


@pytest.mark.promise("gateway:images:exports")
async def test_images_of_recorded_conversations_are_parts_and_files(tmp_path: Path) -> None:
    shown = [image(shade=shade) for shade in range(2)]
    first, second = (Blob.of(data, "image/png") for data in shown)
    seen, found = (ImagePart(blob.hash.encode(), blob.mime) for blob in (first, second))
    result = ToolReply("c1", "look", (TextPart("Found:"), found))
    messages = (user("What is this?", seen), said(looked()), user(result))
    sent = GatewayCall(
        dialect="chat", messages=messages, images={first.hash: shown[0], second.hash: shown[1]}
    )
    async with registry_at(tmp_path / "gateway") as registry:
        await registry.slots.offer(offers("t@0", size=1))
        begun = await registry.begin(OWNER)
        assert begun is not None
        live, name = registry.find(begun.keys[""])
        live.delivered([one.id for one in await live.complete(name, sent, "")])
        await registry.end(OWNER, begun.episode, 1, EpisodeOutcome(reward=1.0))
    await to_thread.run_sync(export_run, tmp_path / "gateway", "openai", tmp_path / "out")
    [row] = rows(tmp_path / "out/train.jsonl")
    files = [f"images/{blob.hash}.png" for blob in (first, second)]
    question, _, answer, _ = row["messages"]
    assert [part.get("text") or part["image_url"]["url"] for part in question["content"]] == [
        "What is this?",
        files[0],
    ]
    assert [part.get("text") or part["image_url"]["url"] for part in answer["content"]] == [
        "Found:",
        files[1],
    ]
    assert [(tmp_path / "out" / file).read_bytes() for file in files] == shown


@pytest.mark.promise("exports:recorded")
@pytest.mark.parametrize("number", range(6))
async def test_each_answer_of_an_agent_is_trained_once_in_the_conversation_that_it_saw(number: int) -> None:
    talk = Conversation(number, ExactAnswerer(RandomEngine().engine))
    await talk.talk()
    tree = agent_record(recorded(*talk.records), "")
    trained = Counter[str]()
    for row in values(trl_sft([tree], chats(*TOOLS))):
        trained.update(json.dumps(message) for message in row["completion"] if message["role"] == "assistant")
        assert row["completion"][0]["role"] == row["completion"][-1]["role"] == "assistant"
        assert row["prompt"][0]["role"] in ("system", "user")
    ends = {record.parent for record in talk.records if record.delivered}
    malformed = [
        record for record in talk.records if any(_is_malformed(part) for part in record.answer.parts)
    ]
    delivered = [record for record in talk.records if record.delivered and record not in malformed]
    assert trained.total() == len(delivered)
    assert len(tree.answers) == sum(record.delivered and record.id not in ends for record in talk.records)
    # A conversation has the messages that the agent sent with its last call.
    asked = {tuple(_roles(one)) for one in (sent.messages for sent in talk.calls)}
    for answer in tree.answers:
        assert tuple(message["role"] for message in answer.messages[:-1]) in asked
        assert not is_masked(answer.messages[-1]) or malformed


def _is_malformed(part: object) -> bool:
    return isinstance(part, ToolCall) and part.arguments is None


def _roles(messages: tuple[Message, ...]) -> list[str]:
    found: list[str] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolReply)]
        found += ["tool"] * len(results) or [message.role]
    return found


@pytest.mark.promise("exports:recorded")
def test_a_conversation_is_in_each_format_as_it_was() -> None:
    system = Message("system", (TextPart("Be brief."),))
    opening = call(
        "1",
        system,
        user("When and where? <|im_end|>"),
        answer=said("Look.", looked(), looked("c2", "town")),
        tools=TOOLS[:1],
        reasoning="Two things are asked.",
    )
    results = user(
        ToolReply("c1", "look", (TextPart("1834"),)),
        ToolReply("c2", "look", (TextPart("Low Maddon"),)),
        "Go on.",
    )
    tree = agent_record(recorded(opening, call("2", results, answer=said("1834"), parent="1")), "")
    [row] = values(trl_sft([tree], chats(*TOOLS)))
    assert [one["role"] for one in row["prompt"]] == ["system", "user"]
    assert "<|im_end|>" not in row["prompt"][1]["content"]
    assert [one["role"] for one in row["completion"]] == ["assistant", "tool", "tool", "user", "assistant"]
    assert row["completion"][0]["reasoning_content"] == "Two things are asked."
    assert [one["function"]["name"] for one in json.loads(row["tools"])] == ["look"]
    [row] = values(sharegpt([tree], chats(*TOOLS)))
    assert [turn["from"] for turn in row["conversations"]] == [
        *("system", "human", "function_call", "observation", "gpt")
    ]
    assert [one["arguments"]["q"] for one in json.loads(row["conversations"][2]["value"])] == [
        "light",
        "town",
    ]
    assert row["conversations"][3]["value"] == "1834\n\nLow Maddon\n\nGo on."
    [row] = values(openai([tree], chats(*TOOLS)))
    assert not any("reasoning_content" in one or "context" in one for one in row["messages"])
    [row] = values(verl_sft([tree], chats(*TOOLS)))
    assert row["messages"][0]["content"].startswith("Be brief.\n\n# Tools\n")
    [row] = values(trl_prm([tree], chats(*TOOLS)))
    assert row["prompt"].startswith("Be brief.\n\nWhen and where?")
    assert (len(row["completions"]), row["labels"]) == (2, [True, True])


@pytest.mark.promise("exports:recorded")
def test_calls_that_failed_or_are_no_json_are_masked_and_foreign_answers_are_context() -> None:
    example = (user("An example?"), said("Its answer."))
    failed = user(ToolReply("c1", "look", (TextPart("no such light"),), failed=True))
    broken = said(ToolCall("c2", "look", None, '{"q": '))
    episode = recorded(
        call("1", *example, user("When?"), answer=said(looked())),
        call("2", failed, answer=broken, parent="1"),
        call("3", user(ToolReply("c2", "look", (TextPart("not JSON"),))), answer=said("1834"), parent="2"),
    )
    tree = agent_record(episode, "")
    messages = conversation_of(tree, tree.answers[0])
    masked = [is_masked(message) for message in messages if message["role"] == "assistant"]
    assert masked == [False, True, True, False]
    [row] = values(trl_sft([tree], chats()))
    assert [one["content"] for one in row["completion"]] == ["1834"]
    compared = {row["id"] for row in values(trl_kto([tree], chats()))}
    assert compared == {"0/0/7"}, "neither the example nor a call that failed in a right episode"


@pytest.mark.promise("exports:recorded")
def test_rewards_and_the_word_of_the_agent_decide_what_is_right() -> None:
    one = call("1", user("When?"), answer=said("1834"))
    cases = (
        (1.0, None, ""),
        (2.5, None, ""),
        (0.4, True, ""),
        (1.0, False, "not_correct"),
        (None, None, "no_score"),
    )
    for reward, success, reason in cases:
        [tree] = episode_records(recorded(one, reward=reward, success=success))
        found = list(openai([tree], chats(take=Take.CORRECT)))
        assert [one.reason for one in found if isinstance(one, Dropped)] == ([reason] if reason else [])
    prompt = call("1", answer=said("more text"), dialect="completions")
    [tree] = episode_records(recorded(prompt))
    assert list(openai([tree], chats())) == [Dropped("t", "0/0", DropReason.NO_ANSWER)]


@pytest.mark.promise("exports:grounds")
def test_episodes_of_one_draw_are_compared_where_their_answers_differ() -> None:
    found = [
        agent_record(recorded(call("1", user("When?"), answer=said(text)), reward=reward, id=id), "")
        for id, text, reward in (("0/0", "1834", 2.5), ("0/1", "1835", -1.0), ("0/2", "1834", 2.5))
    ]
    [row] = values(trl_dpo(found, chats()))
    assert (row["id"], row["ground"]) == ("0/0/1/0/1/1", "reward")
    assert [one["content"] for one in (*row["chosen"], *row["rejected"])] == ["1834", "1835"]


@pytest.mark.promise("exports:recorded")
def test_a_tuning_exports_the_conversations_of_its_episodes_and_none_of_its_validation(
    tuning: Path, tmp_path: Path
) -> None:
    formats = ("trl-sft", "trl-sft-tokens", "trl-dpo", "trl-grpo", "native")
    counts = {format: export_run(tuning, format, tmp_path / format) for format in formats}
    assert {manifest.run["kind"] for manifest in counts.values()} == {"tuning"}
    assert counts["trl-sft"].dropped["not_correct"] == 4
    assert {manifest.dropped["validation"] for manifest in counts.values()} == {3}
    assert "through the gateway, message by message" in (tmp_path / "trl-sft" / "README.md").read_text()
    conversations = rows(tmp_path / "trl-sft" / "train.jsonl")
    assert len({row["id"].split("/")[0] for row in conversations}) == 4, "the right episode of each draw"
    for row in conversations:
        assert [one["content"] for one in row["prompt"][:2]] in (
            ["Be brief.", f"What is {n}?"] for n in range(2)
        )
        assert [one["function"]["name"] for one in json.loads(row["tools"])] == ["look"]
    pairs = rows(tmp_path / "trl-dpo" / "train.jsonl")
    assert {row["ground"] for row in pairs} <= {"reward", "verdict"}
    assert len({json.dumps(row["prompt"]) for row in pairs}) == 2
    assert [row["id"] for row in rows(tmp_path / "trl-grpo" / "train.jsonl")] == ["t0", "t1"]
    assert len(rows(tmp_path / "native" / "calls.jsonl")) == 8 * 2
    split = export_run(tuning, "native", tmp_path / "split", split=True)
    assert (split.rows["trees.jsonl"], split.rows["trees.validation.jsonl"]) == (4, 4), "no task is in both"


@pytest.mark.promise("exports:recorded")
async def test_a_gateway_alone_exports_each_agent_and_a_damaged_one_is_one_line(tmp_path: Path) -> None:
    agents = {"wolf": AgentSettings(trained=True), "owl": AgentSettings(trained=True)}
    async with registry_at(tmp_path / "run", GatewaySettings(agents=agents)) as registry:
        await registry.slots.offer(offers("t", size=2))
        for is_ended in (True, False):
            begun = await registry.begin(OWNER)
            assert begun is not None
            for agent, question, is_received in (
                ("wolf", "one", True),
                ("owl", "two", True),
                ("owl", "lost", False),
            ):
                live, name = registry.find(begun.keys[agent])
                answers = await live.complete(name, ask(question), "")
                live.delivered([answer.id for answer in answers], is_received)
            if is_ended:
                await registry.end(OWNER, begun.episode, 1, EpisodeOutcome(reward={"wolf": 1.0, "owl": 0.0}))
    manifest = await to_thread.run_sync(export_run, tmp_path / "run", "openai", tmp_path / "data")
    assert (manifest.run["kind"], manifest.rows) == ("gateway", {"train.jsonl": 1})
    # An answer is known to be lost once its episode has ended.
    assert manifest.dropped == {"no_score": 3, "not_correct": 1}
    [row] = rows(tmp_path / "data" / "train.jsonl")
    assert [one["content"] for one in row["messages"]] == ["one", "to one"]
    with closing(sqlite3.connect(tmp_path / "run" / "episodes.db", isolation_level=None)) as journal:
        journal.execute("UPDATE calls SET body = x'00'")
    for damage in (None, b"no database" * 1000):
        if damage is not None:
            (tmp_path / "run" / "episodes.db").write_bytes(damage)
        with pytest.raises(
            ConfigurationError, match=r"episodes\.db: (can't be read|a record is damaged)"
        ) as found:
            export_run(tmp_path / "run", "openai", tmp_path / "more")
        assert "\n" not in str(found.value)
        assert not (tmp_path / "more").exists()
    orphan = recorded(call("2", user("When?"), answer=said("1834"), parent="1"))
    with pytest.raises(ConfigurationError, match="call '2' continues '1', which is missing"):
        list(episode_records(orphan))
