"""TRL reads exported folders: each trainer makes a step with a tiny random model."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agentflow.exports._trees import rows
from tests.trainers._environments import drive

pytestmark = pytest.mark.soak

Export = Callable[[Path, str], Path]


def made_a_step(figures: Mapping[str, Any]) -> bool:
    """Return true if the trainer made one step and changed the model."""
    return figures["steps"] == 1 and figures["changed"] > 0


def spoken(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of the model."""
    return [message for message in messages if message["role"] == "assistant"]


@pytest.mark.promise("exports:trl")
def test_trl_trains_exactly_the_messages_of_the_model(
    synthesis: Path, exported: Export, tmp_path: Path
) -> None:
    folder = exported(synthesis, "trl-sft")
    given = rows(folder / "train.jsonl")
    found = drive("trl", "trl_steps.py", f"sft={folder}", scratch=tmp_path)["sft"]
    assert made_a_step(found)
    assert found["rows"] == len(given) > 0
    assert found["labels"] == found["sampled"] > 0
    for row, parts in zip(given, found["texts"], strict=True):
        messages = spoken(row["completion"])
        assert len(parts) == len(messages)
        for message, part in zip(messages, parts, strict=True):
            assert message["content"] in part
            assert all(call["function"]["name"] in part for call in message.get("tool_calls", ()))
    # Calls have different arguments, and none got the arguments of another one as nulls.
    calls = [
        call
        for row in given
        for message in spoken(row["completion"])
        for call in message.get("tool_calls", ())
    ]
    assert found["calls"] == [call["function"]["arguments"] for call in calls]
    assert len({frozenset(arguments) for arguments in found["calls"]}) > 1


@pytest.mark.promise("exports:environments")
def test_grpo_of_trl_calls_a_tool_in_a_sandbox_and_trains_only_sampled_tokens(tmp_path: Path) -> None:
    (folder := tmp_path / "tasks").mkdir()
    tasks = [
        {
            "id": name,
            "prompt": [{"role": "user", "content": f"Compute 6*{name}."}],
            "references": [str(6 * int(name))],
        }
        for name in "78"
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    found = drive("trl", "grpo_step.py", folder, "pwd; touch here; ls", scratch=tmp_path)
    assert made_a_step(found)
    (schema,) = found["tools"]
    assert schema["name"] == "bash_run"
    assert schema["parameters"]["required"] == ["command"]
    assert (found["calls"], found["failures"]) == (1.0, 0.0)
    assert found["references"] in ([["42"]] * 2, [["48"]] * 2)
    for messages in found["completions"]:
        assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
        # Each environment has a workspace of its own.
        assert json.loads(messages[1]["content"])["stdout"].split() == ["/home/agent", "here"]
    for trained, whole in found["masks"]:
        # The call and at most eight tokens after the result, which is not trained.
        assert found["call_tokens"] < trained <= found["call_tokens"] + 8 < whole
