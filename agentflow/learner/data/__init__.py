"""Training data: published questions become parquet in documented columns, which training and rollouts read as tasks."""

from agentflow.learner.data._prepare import Prepared, prepare
from agentflow.learner.data._sources import Item

__all__ = ["Item", "Prepared", "prepare"]
