"""TRL trains on exports: the program of each card makes a step with a tiny random model."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow.exports import export_run
from tests.agentflow.exports._trees import rows
from tests.trainers._environments import drive

pytestmark = pytest.mark.soak

Export = Callable[[Path, str], Path]
Row = Mapping[str, Any]

RUNS = pytest.mark.parametrize("kind", ["mixed_synthesis", "mixed_rollout", "tuning"])


@pytest.fixture
def run(kind: str, request: pytest.FixtureRequest) -> Path:
    """Return the run of that name."""
    return request.getfixturevalue(kind)


def trained(folder: Path, environment: str = "trl") -> list[Row]:
    """Run the program of an export's card for one step over all rows; return these rows."""
    found = drive(environment, "card_program.py", folder, scratch=folder.parent)
    assert (found["steps"], found["finite"]) == (1, True)
    assert found["changed"] > 0
    if found["written"]:
        # Calls and schemas of tools reach the model as they were written: no loader adds nulls.
        assert sorted(map(text, found["rows"])) == sorted(found["written"])
    return found["rows"]


def text(row: Row) -> str:
    """Return the whole text of a row."""
    return "".join(context + part for context, part in row["text"])


def parts(row: Row) -> list[str]:
    """Return the trained parts of a row."""
    return [part for _, part in row["text"] if part]


def labels(row: Row) -> list[int]:
    """Return the labels of a row that are not ignored."""
    return [label for label in row["labels"] if label != -100]


def called(function: Row) -> str:
    """Return a call as the template of Qwen 3 writes it."""
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def answers(messages: Sequence[Row]) -> list[str]:
    """Return the messages of the model, as the template of Qwen 3 writes them behind a prompt."""
    found: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            functions = [call["function"] for call in message.get("tool_calls", ())]
            said = [message["content"], *map(called, functions)]
            lines = "\n".join(part for part in said if part)
            found.append(f"<think>\n\n</think>\n\n{lines}<|im_end|>\n")
    return found


@RUNS
@pytest.mark.promise("exports:trl")
def test_sft_trains_exactly_the_messages_of_the_model(run: Path, exported: Export) -> None:
    folder = exported(run, "trl-sft")
    found, given = trained(folder), rows(folder / "train.jsonl")
    assert sorted(map(parts, found)) == sorted(answers(row["completion"]) for row in given)
    # Whole conversations have weights: each message of weight 1 is trained once, and none that failed.
    whole = [message for row in rows(exported(run, "openai") / "train.jsonl") for message in row["messages"]]
    sampled = answers([message for message in whole if message.get("weight") != 0])
    assert sorted(part for row in found for part in parts(row)) == sorted(sampled)


@pytest.mark.parametrize("kind", ["mixed_rollout", "training"])
@pytest.mark.promise("exports:trl")
def test_sft_on_tokens_trains_exactly_the_sampled_tokens_of_right_episodes(run: Path, tmp_path: Path) -> None:
    export_run(run, "trl-sft-tokens", tmp_path / "data")
    export_run(run, "native", tmp_path / "native")
    found, given = trained(tmp_path / "data"), rows(tmp_path / "data/train.jsonl")
    assert sorted(row["labels"] for row in found) == sorted(row["labels"] for row in given)
    right = {tree["tree_id"] for tree in rows(tmp_path / "native/trees.jsonl") if tree["reward"] == 1.0}
    calls = rows(tmp_path / "native/calls.jsonl")
    assert right < {call["tree_id"] for call in calls}
    # A call that two paths share has a place among the rows only once.
    drawn = [call for call in calls if call["tree_id"] in right and call["row"] is not None]
    sampled = sorted(token for call in drawn for token in call["sampled_ids"])
    assert sorted(label for row in found for label in labels(row)) == sampled


@RUNS
@pytest.mark.promise("exports:trl")
def test_dpo_compares_exactly_the_exported_completions(run: Path, exported: Export) -> None:
    folder = exported(run, "trl-dpo")
    found, given = trained(folder), rows(folder / "train.jsonl")
    compared = [answers(row[name]) for row in given for name in ("chosen", "rejected")]
    assert sorted(map(parts, found)) == sorted(compared)


@RUNS
@pytest.mark.promise("exports:trl")
def test_kto_labels_exactly_the_exported_completions(run: Path, exported: Export) -> None:
    folder = exported(run, "trl-kto")
    found, given = trained(folder), rows(folder / "train.jsonl")
    desired = sorted((answers(row["completion"]), row["label"]) for row in given)
    assert sorted((parts(row), row["desired"]) for row in found) == desired
    assert {label for _, label in desired} == {True, False}


@RUNS
@pytest.mark.promise("exports:trl")
def test_prm_labels_the_end_of_each_step(run: Path, exported: Export) -> None:
    folder = exported(run, "trl-prm")
    found, given = trained(folder, "trl-prm"), rows(folder / "train.jsonl")
    steps = sorted(
        (row["prompt"], [f"{step}\n" for step in row["completions"]], row["labels"]) for row in given
    )
    expected = [([prompt + first, *rest], list(map(int, own))) for prompt, (first, *rest), own in steps]
    assert sorted(([a + b for a, b in row["text"] if b], labels(row)) for row in found) == sorted(expected)
    assert {label for _, own in expected for label in own} == {0, 1}


@RUNS
@pytest.mark.promise("exports:environments")
def test_grpo_calls_a_tool_in_a_sandbox_and_trains_only_sampled_tokens(
    run: Path, exported: Export, tmp_path: Path
) -> None:
    folder = exported(run, "trl-grpo")
    found = drive("trl", "grpo_step.py", folder, "pwd; touch here; ls", scratch=tmp_path)
    assert found["steps"] == 1
    assert found["changed"] > 0
    (schema,) = found["tools"]
    assert schema["name"] == "bash_run"
    assert schema["parameters"]["required"] == ["command"]
    assert (found["calls"], found["failures"]) == (1.0, 0.0)
    assert found["references"] in [[row["references"]] * 2 for row in rows(folder / "train.jsonl")]
    for messages in found["completions"]:
        assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
        # Each environment has a workspace of its own.
        assert json.loads(messages[1]["content"])["stdout"].split() == ["/home/agent", "here"]
    for tokens, whole in found["masks"]:
        # The call and at most eight tokens after the result, which is not trained.
        assert found["call_tokens"] < tokens <= found["call_tokens"] + 8 < whole
