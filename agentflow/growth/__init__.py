"""Growth of trees: the planner proposes actions, each branch acts in a fork of its parent's sandbox, the verifier judges.

A tree grows level by level; any number of trees grow concurrently. Every effect is journalled, so growing a tree again
resumes it. See docs/growth.md.
"""

from agentflow.growth._branch_sandboxes import BranchSandboxes
from agentflow.growth._grower import Grower, NodeObserver
from agentflow.growth._records import (
    LevelRecord,
    VerdictRecord,
    plans_of,
    with_observations,
    without_observations,
)
from agentflow.growth._settings import ExecutorPort, GrowthSettings, PlannerPort, Unforkable, VerifierPort

__all__ = [
    "BranchSandboxes",
    "ExecutorPort",
    "Grower",
    "GrowthSettings",
    "LevelRecord",
    "NodeObserver",
    "PlannerPort",
    "Unforkable",
    "VerdictRecord",
    "VerifierPort",
    "plans_of",
    "with_observations",
    "without_observations",
]
