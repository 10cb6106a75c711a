"""Whole rollouts: their settings, their tasks, their files."""

import json
from pathlib import Path
from typing import Any

from agentflow.rollouts import Assignment, RolloutConfig, RolloutRun, RolloutSummary, assign
from agentflow.trace import Task

QUESTIONS = (
    ("When was Needle Light built?", "1834"),
    ("Who was the designer of Needle Light?", "Theda Marrow"),
    ("Who discovered the Lantern Comet?", "Maeve Calloran"),
    ("When was the Lantern Feast first held?", "1707"),
)
"""Questions about the bundled corpus, with their answers."""


def some_tasks(count: int = len(QUESTIONS)) -> list[Task]:
    """Return the given number of tasks."""
    return [
        Task(index=number, id=f"q{number + 1}", question=question, references=(answer,))
        for number, (question, answer) in enumerate((QUESTIONS * count)[:count])
    ]


def config_for(folder: Path, **settings: object) -> RolloutConfig:
    """Return settings of a small rollout over the bundled corpus."""
    small: dict[str, object] = {"max_turns": 3, "max_workers": 8}
    return RolloutConfig.model_validate({**small, "output_dir": str(folder), **settings})


async def run_to_the_end(
    config: RolloutConfig, tasks: list[Task] | None = None
) -> tuple[RolloutRun, RolloutSummary]:
    """Run a rollout and return it with its summary."""
    run = RolloutRun(config)
    return run, await run.run(assigned(config, tasks))


def assigned(config: RolloutConfig, tasks: list[Task] | None = None) -> Assignment:
    """Return the assignment of a rollout."""
    return assign(config, some_tasks() if tasks is None else tasks)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    """Files as they are."""
    return {name: (folder / name).read_bytes() for name in names}
