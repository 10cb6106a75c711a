"""Rollouts: tasks worked on by the team or a single agent in fresh sandboxes, scored and summarised.

`rollout(config_path=…)` works on a file of tasks, `quick_rollout("…")["answer"]` on one question; `agentflow.rollout` has
the same names. Benchmarks are in `agentflow.rollouts.benchmarks`, tables of finished runs in `agentflow.rollouts.analysis`.
"""

from typing import TYPE_CHECKING

from agentflow.rollouts._config import BranchingSettings, RolloutConfig, load_rollout_config
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.rollouts._api import aquick_rollout, arollout, quick_rollout, rollout
    from agentflow.rollouts._result import TaskResult, episode_tree, task_of
    from agentflow.rollouts._run import RolloutRun, RolloutStatus
    from agentflow.rollouts._summary import RESULTS, SUMMARY, TRAJECTORIES, RolloutSummary
    from agentflow.rollouts._tasks import Assignment, assign
    from agentflow.rollouts.benchmarks import load_tasks
    from agentflow.scoring import score

__all__ = [
    "RESULTS",
    "SUMMARY",
    "TRAJECTORIES",
    "Assignment",
    "BranchingSettings",
    "RolloutConfig",
    "RolloutRun",
    "RolloutStatus",
    "RolloutSummary",
    "TaskResult",
    "aquick_rollout",
    "arollout",
    "assign",
    "episode_tree",
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
        "._result": ["TaskResult", "episode_tree", "task_of"],
        "._run": ["RolloutRun", "RolloutStatus"],
        "._summary": ["RESULTS", "SUMMARY", "TRAJECTORIES", "RolloutSummary"],
        "._tasks": ["Assignment", "assign"],
        ".benchmarks": ["load_tasks"],
        "agentflow.scoring": ["score"],
    },
)
