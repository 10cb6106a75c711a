"""Rollouts: tasks worked on by the team or a single agent, each in a sandbox of its own, scored and summed up.

`rollout(config_path=…)` does it all, `quick_rollout("…")["answer"]` one question; `load_tasks` reads tasks, `score`
applies a rule to an answer. The package itself can be called: `from agentflow import rollout` is the function.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentflow.rollout._config import RolloutConfig, load_config
from agentflow.runs import RoleModel, render_config
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.rollout._analysis import AnalysedRun, AnalysisTable, find_runs, tables_of
    from agentflow.rollout._api import aquick_rollout, arollout, quick_rollout, rollout
    from agentflow.rollout._benchmarks import (
        Benchmark,
        Row,
        benchmark_names,
        find_benchmark,
        load_tasks,
        read_rows,
        references,
    )
    from agentflow.rollout._files import RESULTS, SUMMARY, TRAJECTORIES
    from agentflow.rollout._picture import draw
    from agentflow.rollout._progress import RolloutStatus
    from agentflow.rollout._render import render, with_interval
    from agentflow.rollout._result import Result
    from agentflow.rollout._run import RolloutRun
    from agentflow.rollout._sandbox_pool import SandboxPool
    from agentflow.rollout._summary import Summary
    from agentflow.rollout._tasks import Assignment, assign
    from agentflow.scoring import score

__all__ = [
    "RESULTS",
    "SUMMARY",
    "TRAJECTORIES",
    "AnalysedRun",
    "AnalysisTable",
    "Assignment",
    "Benchmark",
    "Result",
    "RoleModel",
    "RolloutConfig",
    "RolloutRun",
    "RolloutStatus",
    "Row",
    "SandboxPool",
    "Summary",
    "aquick_rollout",
    "arollout",
    "assign",
    "benchmark_names",
    "draw",
    "find_benchmark",
    "find_runs",
    "load_config",
    "load_tasks",
    "quick_rollout",
    "read_rows",
    "references",
    "render",
    "render_config",
    "rollout",
    "score",
    "tables_of",
    "with_interval",
]


# Settings load no servers.
__getattr__ = lazy_exports(
    __name__,
    {
        "._analysis": ["AnalysedRun", "AnalysisTable", "find_runs", "tables_of"],
        "._api": ["aquick_rollout", "arollout", "quick_rollout", "rollout"],
        "._benchmarks": [
            "Benchmark",
            "Row",
            "benchmark_names",
            "find_benchmark",
            "load_tasks",
            "read_rows",
            "references",
        ],
        "._files": ["RESULTS", "SUMMARY", "TRAJECTORIES"],
        "._picture": ["draw"],
        "._progress": ["RolloutStatus"],
        "._render": ["render", "with_interval"],
        "._result": ["Result"],
        "._run": ["RolloutRun"],
        "._sandbox_pool": ["SandboxPool"],
        "._summary": ["Summary"],
        "._tasks": ["Assignment", "assign"],
        "agentflow.scoring": ["score"],
    },
)


class _Callable(ModuleType):
    """This package: the function of its name is found at the same place, so calling either is the same."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `rollout` takes
        """See `agentflow.rollout._api.rollout`."""
        from agentflow.rollout._api import rollout

        return rollout(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
