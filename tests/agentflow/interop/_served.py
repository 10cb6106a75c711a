"""Tasks served with sandboxes: one of a terminal with its verifier, and a question."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow.interop import EnvironmentLimits, TaskHost, open_task_host, serve_tasks
from agentflow.rollouts import RolloutConfig

SOLUTION = "sort -n numbers.txt > sorted.txt"

_PROBE: list[dict[str, Any]] = [{"tool": "bash_inspect", "arguments": {"commands": []}}]
TASKS: list[dict[str, Any]] = [
    {
        "id": "sort",
        "kind": "terminal",
        "instruction": "Write the numbers of numbers.txt to sorted.txt, the smallest first.",
        "setup": {
            "tools": ["bash_run"],
            "actions": [
                {"tool": "bash_run", "arguments": {"command": "printf '3\\n1\\n2\\n' > numbers.txt"}}
            ],
        },
        "gold": {"name": "gold", "actions": [{"tool": "bash_run", "arguments": {"command": SOLUTION}}]},
        "verifier": [
            {
                "says": "`sorted.txt` has exactly this content: 1, 2, 3",
                "probe": _PROBE,
                "relation": "equal",
                "expected": {"thing": "sorted.txt", "property": "text", "value": "1\n2\n3"},
            }
        ],
        "wrong": [],
        "tree_id": "tree_1",
        "source_id": "seed_1",
    },
    {"id": "capital", "question": "What is the capital of France?", "answer": "Paris"},
]


@asynccontextmanager
async def opened(folder: Path, *, max_sandboxes: int = 8) -> AsyncGenerator[TaskHost]:
    """Yield the host of both tasks."""
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    config = RolloutConfig.model_validate(
        {"data_path": str(file), "available_tools": ["bash_run"], "max_sandboxes": max_sandboxes}
    )
    async with open_task_host(config) as host:
        yield host


@asynccontextmanager
async def served(
    folder: Path, *, token: str = "", limits: EnvironmentLimits | None = None
) -> AsyncGenerator[str]:
    """Yield the URL at which both tasks are served."""
    async with opened(folder) as host, serve_tasks(host, token=token, limits=limits) as url:
        yield url
