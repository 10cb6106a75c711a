"""Conversations for fine-tuning, made from the files of a synthesis."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from agentflow.engine import GrowthSettings
from agentflow.errors import ConfigurationError
from agentflow.learner.data import read_attempts, read_conversations
from agentflow.learner.local import lessons_of
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis._files import trajectory_record, tree_record
from agentflow.synthesis._seed_result import Trajectory
from agentflow.synthesis._selection import select
from agentflow.trace import (
    Action,
    ActionOutcome,
    JudgementRequest,
    Node,
    Observation,
    Proposal,
    Seed,
    Text,
    Tree,
    Verdict,
)
from tests.agentflow._families import FAMILIES, tokenizer_of
from tests.agentflow.engine._functions import JudgeBy, PlanBy, fresh_page, grower

PAIR = {"question": "When was the first keeper born?", "answer": "1841", "trajectory_id": "traj_1"}
NODES = [
    {"observation": "Starting point: ports", "intent": "Initialize exploration", "action": None},
    {
        "observation": "x" * 9_000,
        "intent": "Look.",
        "action": {"tool": "rag_search", "args": {"query": "ports"}},
    },
]


def judge(request: JudgementRequest) -> Verdict:
    return Verdict.ERROR if request.step.error else Verdict.NEW


@pytest.mark.promise("growth:recovery:training")
async def test_an_injected_failure_yields_a_kept_path_whose_failure_is_masked_and_whose_repair_is_trained(
    tmp_path: Path,
) -> None:
    commands = [
        "echo 'The first keeper of the light of Brenn was Ada Holm.' | tee keepers",
        "cat keeper-file 2>&1",
        "echo 'Ada Holm was born in Vessel Bay in 1841.' >> keepers; tail -1 keepers",
    ]
    planner = PlanBy(
        lambda request: [
            Proposal(f"Try {len(request.path)}.", "bash_run", {"command": commands[len(request.path)]})
        ]
    )
    settings = GrowthSettings(max_depth=3, branching_factor=1, depth_threshold=1, recovery_share=0.4)
    seed = Seed(index=0, id="seed_001", content="Explore the light of Brenn")
    page = fresh_page()
    async with grower(
        planner, settings=settings, verifier=JudgeBy(judge), backends=("bash",), tools=("bash_run",)
    ) as growing:
        tree = await growing.grow(seed, page)
    assert [node.verdict.value for node in tree.nodes] == ["new", "new", "error", "new"]
    config = SynthesisConfig(max_depth=3)
    failed = tree.nodes[2]
    ((path, score),) = select(tree, config).chosen
    assert failed in path.nodes and failed not in path.evidence
    kept = Trajectory(id=path.id, nodes=tuple(node.id for node in tree.nodes), score=score)
    pair = {"question": "When was the first keeper born?", "answer": "1841", "trajectory_id": path.id}
    (tmp_path / "trajectories.jsonl").write_bytes(msgspec.json.encode(trajectory_record(tree, kept)))
    (tmp_path / "synthesized_qa.jsonl").write_bytes(msgspec.json.encode(pair))
    (conversation,) = read_conversations(tmp_path)
    assert [message["role"] for message in conversation] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert [message.get("trainable", True) for message in conversation] == [True] * 3 + [False] + [True] * 4
    assert "No such file" in conversation[4]["content"]
    tokenizer = tokenizer_of(FAMILIES["ChatML"])
    lessons = lessons_of(conversation, tokenizer)
    trained = [tokenizer.decode(lesson.completion) for lesson in lessons]
    read = [tokenizer.decode(lesson.prompt) for lesson in lessons]
    assert len(lessons) == 3
    assert ["Try 0." in trained[0], "Try 2." in trained[1], "1841" in trained[2]] == [True] * 3
    assert not any("Try 1." in each for each in trained)
    assert "Try 1." in read[1] and "No such file" in read[1]


@pytest.mark.promise("training:conversations")
def test_each_pair_is_a_conversation_whose_long_results_are_windows(tmp_path: Path) -> None:
    failed = {
        **NODES[1],
        "observation": "",
        "failure": {"kind": "timeout", "message": "too slow"},
        "trainable": False,
    }
    path = {"trajectory_id": "traj_1", "nodes": [NODES[0], failed, NODES[1]], "score": 1}
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(path), encoding="utf-8")
    (tmp_path / "synthesized_qa.jsonl").write_text(json.dumps(PAIR), encoding="utf-8")
    ((asked, call, result, again, found, answer),) = read_conversations(tmp_path, max_result_chars=500)
    assert (asked["content"], answer["content"]) == (PAIR["question"], "1841")
    function = {"name": "rag_search", "arguments": {"query": "ports"}}
    assert call["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert (call["trainable"], result["content"]) == (False, "The call failed: timeout: too slow")
    assert "trainable" not in again and found["tool_call_id"] == "call_2"
    assert len(found["content"]) <= 500 and "characters …" in found["content"]


@pytest.mark.promise("training:conversations")
@pytest.mark.parametrize(
    ("pairs", "paths", "message"),
    [
        (
            None,
            "",
            r"synthesized_qa\.jsonl: can't be read: No such file or directory; name the output directory",
        ),
        ("{", "", r"synthesized_qa\.jsonl:1: .*; name files of a synthesis"),
        ('{"question": "Who?"}', "", r"synthesized_qa\.jsonl:1: .*answer"),
        (json.dumps(PAIR), "", r"synthesized_qa\.jsonl:1: trajectory traj_1 is not in trajectories\.jsonl"),
        (json.dumps(PAIR), '{"trajectory_id": 3}', r"trajectories\.jsonl:1: .*trajectory_id"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(
    tmp_path: Path, pairs: str | None, paths: str, message: str
) -> None:
    (tmp_path / "trajectories.jsonl").write_text(paths, encoding="utf-8")
    if pairs is not None:
        (tmp_path / "synthesized_qa.jsonl").write_text(pairs, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message) as error:
        read_conversations(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.promise("training:conversations:images")
def test_images_of_paths_and_attempts_are_given_by_path_or_left_out(tmp_path: Path) -> None:
    image = "images/c4a7.png"
    seen = {
        **NODES[1],
        "observation": "A chart.",
        "images": [{"hash": "c4a7", "mime": "image/png", "file": image}],
    }
    (tmp_path / "trajectories.jsonl").write_text(
        json.dumps({"trajectory_id": "traj_1", "nodes": [*NODES[:1], seen]})
    )
    (tmp_path / "synthesized_qa.jsonl").write_text(json.dumps(PAIR))
    parts = [{"type": "text", "text": "A chart."}, {"type": "image", "path": image}]
    result = {"role": "tool", "tool_call_id": "call_1", "content": parts}
    chat = [{"role": "user", "content": "When?"}, result, {"role": "assistant", "content": "1841"}]
    (tmp_path / "attempts.jsonl").write_text(json.dumps({"qa_id": "q", "attempt": 0, "messages": chat}))
    for read in (read_conversations, read_attempts):
        (plain,) = read(tmp_path)
        assert [message["content"] for message in plain if message["role"] == "tool"] == ["A chart."]
        with pytest.raises(
            ConfigurationError, match=r"c4a7\.png: the image is missing; run the synthesis again"
        ):
            read(tmp_path, images=True)
    (tmp_path / "images").mkdir()
    (tmp_path / image).write_bytes(b"png")
    shown = [parts[0], {"type": "image", "path": str(tmp_path / image)}]
    for read in (read_conversations, read_attempts):
        (whole,) = read(tmp_path, images=True)
        assert [message["content"] for message in whole if message["role"] == "tool"] == [shown]
    outside = [{"type": "image", "path": "../secret.png"}]
    (tmp_path.parent / "secret.png").write_bytes(b"png")
    record = {"qa_id": "q", "attempt": 0, "messages": [{**result, "content": outside}]}
    (tmp_path / "attempts.jsonl").write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match="is missing"):
        read_attempts(tmp_path, images=True)


def episode(number: int, score: float | None, *, answer: str = "1841", **node: object) -> dict[str, object]:
    """A line of a rollout's trajectories."""
    call = {"tool": "rag_search", "args": {"query": "ports", "index": "secret"}}
    failed = {
        "observation": "The call failed: timeout: too slow",
        "intent": "Look.",
        "action": call,
        "failure": {"kind": "timeout", "message": "too slow"},
        "trainable": False,
        "fixed": ["index"],
    }
    found = {"observation": "1841", "intent": "Again.", "action": call, "fixed": ["index"], **node}
    refused = {"observation": "there is no tool", "intent": "", "action": None, "trainable": False}
    return {
        "trajectory_id": f"traj_{number}",
        "task_id": f"t{number}",
        "seed_data": "When was the first keeper born?",
        "nodes": [NODES[0], failed, refused, found],
        "answer": answer,
        "score": score,
    }


def write(path: Path, *records: object) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")


@pytest.mark.promise("training:conversations:episodes")
def test_right_episodes_of_a_rollout_are_conversations_whose_failures_are_masked(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    write(path, episode(1, 1), episode(2, 0.5), episode(3, None), episode(4, 1.0, answer=""))
    ((asked, call, result, again, found, answer),) = read_conversations(tmp_path)
    assert (asked["content"], answer["content"]) == ("When was the first keeper born?", "1841")
    assert [each.get("trainable", True) for each in (call, again, answer)] == [False, True, True]
    assert result["content"] == "The call failed: timeout: too slow"
    assert [each["tool_call_id"] for each in (result, found)] == ["call_1", "call_2"]
    # No model wrote an argument that the task fixes.
    assert again["tool_calls"][0]["function"]["arguments"] == {"query": "ports"}
    assert len(read_conversations(tmp_path, min_score=0.5)) == 2
    write(path, episode(1, None))
    with pytest.raises(ConfigurationError, match="no episode has a score; give the tasks answers"):
        read_conversations(tmp_path)


@pytest.mark.promise("training:conversations:shown")
@pytest.mark.parametrize(
    ("observation", "trained", "shown"),
    [
        ("A chart of 1841.", [False, True, True], "A chart of 1841."),
        ("(empty)", [False, True, False], "(empty)"),
        ("", [False, True, False], "(empty)"),
    ],
)
def test_nothing_is_trained_that_rests_on_an_image_alone(
    tmp_path: Path, observation: str, trained: list[bool], shown: str
) -> None:
    files = [f"images/{digit}.png" for digit in "ab"]
    images = [{"hash": "a", "mime": "image/png", "file": file} for file in files]
    write(tmp_path / "trajectories.jsonl", episode(1, 1.0, observation=observation, images=images))
    (conversation,) = read_conversations(tmp_path)
    said = [message for message in conversation if message["role"] == "assistant"]
    assert [message.get("trainable", True) for message in said] == trained
    assert conversation[4]["content"] == shown
    (tmp_path / "images").mkdir()
    for file in files:
        (tmp_path / file).write_bytes(b"png")
    (seen,) = read_conversations(tmp_path, images=True)
    assert [message.get("trainable", True) for message in seen if message["role"] == "assistant"][1:] == [
        True
    ] * 2
    assert [part["path"] for part in seen[4]["content"][-2:]] == [str(tmp_path / file) for file in files]


@pytest.mark.promise("training:conversations:shown")
@pytest.mark.parametrize(
    ("spans", "trained"),
    [
        ([{"node": "n", "region": [0, 0, 1, 1]}, {"node": "m"}], True),
        ([{"node": "n", "region": [0, 0, 1, 1]}], False),
    ],
)
def test_the_answer_of_a_pair_is_trained_if_texts_state_its_steps(
    tmp_path: Path, spans: list[object], trained: bool
) -> None:
    write(
        tmp_path / "trajectories.jsonl", {"trajectory_id": "traj_1", "nodes": NODES, "score": {"total": 1.0}}
    )
    write(tmp_path / "synthesized_qa.jsonl", {**PAIR, "reasoning_steps": [{"citations": spans}]})
    (conversation,) = read_conversations(tmp_path)
    assert [message.get("trainable", True) for message in conversation] == [True, True, True, trained]


@pytest.mark.promise("training:conversations:fixed")
def test_arguments_that_a_seed_fixes_are_named_in_the_files_and_left_out_of_conversations(
    tmp_path: Path,
) -> None:
    action = Action("rag_search", {"query": "ports", "top_k": 3})
    root = Node(id="n0", verdict=Verdict.NEW)
    found = replace(
        root,
        id="n1",
        parent="n0",
        depth=1,
        action=action,
        outcome=ActionOutcome(Observation((Text("1841"),))),
    )
    seed = Seed(index=0, id="s", content="ports", kwargs={"top_k": 3, "query": "other", "unused": 1})
    tree = Tree(id="t", seed=seed, nodes=(root, found))
    nodes = msgspec.to_builtins(tree_record(tree))["nodes"]
    assert [node.get("fixed") for node in nodes] == [None, ["top_k"]]
    write(tmp_path / "trajectories.jsonl", {"trajectory_id": "traj_1", "nodes": nodes})
    write(tmp_path / "synthesized_qa.jsonl", PAIR)
    (conversation,) = read_conversations(tmp_path)
    assert conversation[1]["tool_calls"][0]["function"]["arguments"] == {"query": "ports"}
