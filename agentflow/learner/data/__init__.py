"""Training data: convert published data sets to parquet files that training and rollouts read. See docs/train-data.md."""

from agentflow.learner.data._prepare import Prepared, prepare, read_conversations
from agentflow.learner.data._sources import Item

__all__ = ["Item", "Prepared", "prepare", "read_conversations"]
