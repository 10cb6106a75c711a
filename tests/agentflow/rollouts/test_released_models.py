"""Rollouts over a file of tasks at endpoints that behave like o3-mini, DeepSeek-R1 and the released planner."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow import arollout
from agentflow.errors import RunStopped
from tests._reasoners import ANSWERS, reasoning_endpoint
from tests.agentflow.rollouts._rollouts import QUESTIONS, lines

PLANNER = "agentflow-planner-7b"


async def rolled_out(
    folder: Path, url: str, name: str, settings: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run a rollout over a file of tasks, and return its results."""
    tasks = folder / "tasks.jsonl"
    rows = [{"id": f"q{index}", "question": question, "answer": answer} for index, (question, answer) in enumerate(QUESTIONS)]  # fmt: skip
    tasks.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    given = await arollout(
        data_path=str(tasks),
        output_dir=str(folder / "out"),
        base_url=url,
        model_name=name,
        available_tools=["rag:search"],
        evaluate=True,
        metric="exact_match",
        max_turns=2,
        max_workers=4,
        **(settings or {}),
    )
    results: list[dict[str, Any]] = given["results"]
    return results


@pytest.mark.promise("models:reasoning_models")
@pytest.mark.parametrize("name", ["o3-mini", "deepseek-r1", "deepseek-r1:7b", "deepseek-reasoner"])
async def test_a_rollout_over_a_file_gets_right_answers_and_scores(name: str, tmp_path: Path) -> None:
    async with reasoning_endpoint(name) as endpoint:
        results = await rolled_out(tmp_path, endpoint.url, name, {"temperature": 0.0, "max_tokens": 4000})
    assert [result["answer"] for result in results] == list(ANSWERS.values())
    assert [result["score"] for result in results] == [1.0, 1.0, 0.0, 1.0]
    assert all(result["tool_calls"] for result in results)
    assert "decoy" not in json.dumps(results)


@pytest.mark.promise("models:reasoning_models")
async def test_a_single_agent_at_an_endpoint_without_tools_ends_with_the_remedy(tmp_path: Path) -> None:
    async with reasoning_endpoint("deepseek-r1:7b") as endpoint:
        with pytest.raises(RunStopped, match=r"does not support tools.*use agent=team") as stopped:
            await rolled_out(tmp_path, endpoint.url, "deepseek-r1:7b", {"agent": "single"})
    assert "\n" not in stopped.value.message


@pytest.mark.promise("team:planner:labelled")
async def test_the_released_planner_works_with_other_models_in_the_other_roles(tmp_path: Path) -> None:
    async with reasoning_endpoint(PLANNER) as planner, reasoning_endpoint("o3-mini") as other:
        settings = {
            "planner_format": "labelled",
            "planner_model": {"model_name": PLANNER, "base_url": planner.url},
            "analyst_model": {"model_name": "o3-mini", "base_url": other.url},
        }
        results = await rolled_out(tmp_path, other.url, "o3-mini", settings)
    assert [result["score"] for result in results] == [1.0, 1.0, 0.0, 1.0]
    for trajectory, (question, _) in zip(
        lines(tmp_path / "out", "trajectories.jsonl"), QUESTIONS, strict=True
    ):
        step = trajectory["nodes"][1]
        assert step["step"] == {
            "justification": "The search tool fits the query best.", "context": question,
            "sub_goal": f"Search for: {question}", "tool_name": "rag_search",
        }  # fmt: skip
        assert step["action"]["tool"] == "rag_search"
    assert planner.answered >= len(QUESTIONS)
    assert all("response_format" not in body and len(body["messages"]) == 1 for body in planner.bodies)


@pytest.mark.promise("team:planner:labelled")
async def test_the_released_planner_may_have_every_role(tmp_path: Path) -> None:
    async with reasoning_endpoint(PLANNER) as endpoint:
        results = await rolled_out(tmp_path, endpoint.url, PLANNER, {"planner_format": "labelled"})
    assert [result["score"] for result in results] == [1.0, 1.0, 0.0, 1.0]
    assert all(result["tool_calls"] for result in results)
