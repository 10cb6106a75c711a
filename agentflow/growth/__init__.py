"""Growing trees: the planner proposes, each branch acts in a fork of its parent's sandbox, the verifier says what it is worth.

A tree grows level by level and any number of trees grow at once. Every effect is journalled, so growing again goes on where it
ended.
"""

from agentflow.growth._branch_sandboxes import Greenhouse
from agentflow.growth._grower import Grower, Observer
from agentflow.growth._node_path import plans_of
from agentflow.growth._ports import Executor, Planner, Verifier
from agentflow.growth._settings import GrowthSettings, Unforkable
from agentflow.growth._stored_tree import with_observations, without_observations

__all__ = [
    "Executor",
    "Greenhouse",
    "Grower",
    "GrowthSettings",
    "Observer",
    "Planner",
    "Unforkable",
    "Verifier",
    "plans_of",
    "with_observations",
    "without_observations",
]
