"""Computing with torch: a model's log-probabilities of the tokens of rows, packed as trees or row by row."""

from agentflow.learner.compute._attention import Attention
from agentflow.learner.compute._prepare import prepare
from agentflow.learner.compute._scores import Scores, log_probs, log_probs_by_row, scores, scores_by_row

__all__ = ["Attention", "Scores", "log_probs", "log_probs_by_row", "prepare", "scores", "scores_by_row"]
