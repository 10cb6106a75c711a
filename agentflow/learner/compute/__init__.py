"""Compute a model's log-probabilities of the tokens of rows with torch: packed as trees, or row by row. See docs/packing.md."""

from agentflow.learner.compute._attention import Attention, log_probs, log_probs_by_row, scores, scores_by_row
from agentflow.learner.compute._prepare import prepare

__all__ = ["Attention", "log_probs", "log_probs_by_row", "prepare", "scores", "scores_by_row"]
