"""A tuning takes tasks from any reader by one text."""

from pathlib import Path

import pytest

from agentflow.testing import fake_endpoint
from agentflow.trace import Task
from agentflow.tuner import atune


def solve(task: Task, policy: object) -> str:
    return task.references[0] if task.index else "no idea"


@pytest.mark.promise("readers:tuning")
async def test_one_text_names_the_tasks_of_a_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with fake_endpoint() as url:
        outcome = await atune(
            solve,
            "reasoning_gym:gcd?size=2&seed=1",
            backbone="debug",
            engine={"base_url": url, "served_model_name": "any"},
            schedule={"episodes_per_task": 1, "tasks_per_step": 2, "steps": 1},
            loss={"kl_coef": 0.0},
        )
    assert outcome["figures"]["reward/mean"] == 0.5
