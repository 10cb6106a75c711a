"""Rollouts: tasks worked on by the team or a single agent in fresh sandboxes, scored and summarised.

`rollout(config_path=…)` works on a file of tasks, `quick_rollout("…")["answer"]` on one question. The package is
callable, so that `from agentflow import rollout` gives the function. Benchmarks are in `agentflow.rollout.benchmarks`,
tables of finished runs in `agentflow.rollout.analysis`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentflow.rollout._config import RolloutConfig, load_rollout_config
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.rollout._api import aquick_rollout, arollout, quick_rollout, rollout
    from agentflow.rollout._files import RESULTS, SUMMARY, TRAJECTORIES
    from agentflow.rollout._progress import RolloutStatus
    from agentflow.rollout._result import TaskResult, task_of
    from agentflow.rollout._run import RolloutRun
    from agentflow.rollout._summary import RolloutSummary
    from agentflow.rollout._tasks import Assignment, assign
    from agentflow.rollout.benchmarks import load_tasks
    from agentflow.scoring import score

__all__ = [
    "RESULTS",
    "SUMMARY",
    "TRAJECTORIES",
    "Assignment",
    "RolloutConfig",
    "RolloutRun",
    "RolloutStatus",
    "RolloutSummary",
    "TaskResult",
    "aquick_rollout",
    "arollout",
    "assign",
    "load_rollout_config",
    "load_tasks",
    "quick_rollout",
    "rollout",
    "score",
    "task_of",
]

# Settings load no servers.
__getattr__ = lazy_exports(
    __name__,
    {
        "._api": ["aquick_rollout", "arollout", "quick_rollout", "rollout"],
        "._files": ["RESULTS", "SUMMARY", "TRAJECTORIES"],
        "._progress": ["RolloutStatus"],
        "._result": ["TaskResult", "task_of"],
        "._run": ["RolloutRun"],
        "._summary": ["RolloutSummary"],
        "._tasks": ["Assignment", "assign"],
        ".benchmarks": ["load_tasks"],
        "agentflow.scoring": ["score"],
    },
)


class _CallablePackage(ModuleType):
    """This package as a function: `agentflow.rollout(...)` and `agentflow.rollout.rollout(...)` are the same."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `rollout` takes
        """See `agentflow.rollout.rollout`."""
        from agentflow.rollout._api import rollout

        return rollout(*arguments, **named)


sys.modules[__name__].__class__ = _CallablePackage
