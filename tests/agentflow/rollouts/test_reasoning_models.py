"""Reasoning models through rollout, scoring, judge, solver and synthesis."""

from pathlib import Path
from typing import Any

import pytest

from agentflow import construct_solver
from tests._reasoners import ANSWERS, DECOY, REASONERS, reasoning_endpoint
from tests.agentflow.rollouts._rollouts import QUESTIONS, config_for, lines, run_to_the_end
from tests.agentflow.synthesis import _runs as synthesis

each = pytest.mark.parametrize("name", REASONERS)
SHOWN = {name for name, model in REASONERS.items() if not model.hidden}


@pytest.mark.promise("models:reasoning_models")
@pytest.mark.parametrize("agent", ["team", "single"])
@pytest.mark.parametrize("metric", ["exact_match", "llm_judgement"])
@each
async def test_a_rollout_gets_right_answers_and_scores(
    name: str, metric: str, agent: str, tmp_path: Path
) -> None:
    async with reasoning_endpoint(name) as endpoint:
        config = config_for(
            tmp_path,
            base_url=endpoint.url,
            model_name=name,
            temperature=0.0,
            max_tokens=4000,
            agent=agent,
            evaluation_metric=metric,
            # A rule would decide before the judge.
            metric_options={"rule": ""} if metric == "llm_judgement" else {},
            max_turns=2,
        )
        _, summary = await run_to_the_end(config)
    results = lines(tmp_path, "results.jsonl")
    assert [result["answer"] for result in results] == list(ANSWERS.values())
    assert [result["score"] for result in results] == [1.0, 1.0, 0.0, 1.0]
    assert not any("not_judged" in result for result in results)
    assert summary.failed == 0
    assert not any("decoy" in str(result) for result in results)
    _check_trajectories(lines(tmp_path, "trajectories.jsonl"), shown=name in SHOWN)


def _check_trajectories(trajectories: list[dict[str, Any]], *, shown: bool) -> None:
    for trajectory in trajectories:
        steps = trajectory["nodes"][1:]
        assert [step.get("reasoning") for step in steps] == [DECOY if shown else None] * len(steps)
        assert all((exchange.get("reasoning") == DECOY) == shown for exchange in trajectory["exchanges"])
        for record in (*steps, *trajectory["exchanges"]):
            record.pop("reasoning", None)
        assert "decoy" not in str(trajectory)


@pytest.mark.promise("models:reasoning_models")
@each
async def test_rejected_parameters_are_sent_only_until_the_model_is_known(name: str, tmp_path: Path) -> None:
    async with reasoning_endpoint(name) as endpoint:
        config = config_for(
            tmp_path, base_url=endpoint.url, model_name=name, temperature=0.0, max_tokens=9, max_workers=1
        )
        await run_to_the_end(config)
    model = REASONERS[name]
    assert endpoint.rejected <= len(model.rejected) + 3 - len(model.formats)
    assert endpoint.answered > 10
    assert ("max_completion_tokens" in endpoint.bodies[-1]) == ("max_tokens" in model.rejected)


@pytest.mark.promise("models:reasoning_models")
@each
async def test_a_solver_answers_without_the_reasoning(name: str) -> None:
    question, answer = QUESTIONS[0]
    async with reasoning_endpoint(name) as endpoint:
        solver = construct_solver(
            name,
            base_url=endpoint.url,
            enabled_tools=["rag_search", "base_generator"],
            output_types="base,final,direct",
            max_steps=2,
        )
        found = await solver.asolve(question)
        known = endpoint.rejected
        await solver.asolve(question)
        assert endpoint.rejected == known, "a solver remembers what its models reject"
    assert found["direct_output"] == found["base_response"] == answer
    assert found["final_output"] == f"It is {answer}."
    reasoning = {key: found.pop(key) for key in list(found) if key.endswith("_reasoning")}
    assert set(reasoning.values()) == ({DECOY} if name in SHOWN else set())
    assert "decoy" not in str(found)


@pytest.mark.promise("models:reasoning_models")
@each
async def test_a_synthesis_writes_questions_without_the_reasoning(name: str, tmp_path: Path) -> None:
    async with reasoning_endpoint(name) as endpoint:
        settings = {"temperature": 0.0, "max_tokens": 4000, "number_of_seed": 2}
        config = synthesis.config_for(tmp_path, base_url=endpoint.url, model_name=name, **settings)
        _, report = await synthesis.run_to_the_end(config)
    assert report.pairs > 0
    assert all("decoy" not in str(pair) for pair in lines(tmp_path, synthesis.PAIRS))
    for tree in lines(tmp_path, synthesis.TREES):
        expanded = [node for node in tree["nodes"] if node["children_ids"]]
        # A node whose planner was asked twice has both.
        parts = {part for node in expanded for part in node.get("reasoning", "").split("\n\n")}
        assert parts == {DECOY if name in SHOWN else ""}
        for node in tree["nodes"]:
            node.pop("reasoning", None)
        assert "decoy" not in str(tree)
