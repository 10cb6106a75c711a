"""Losses: turn samples into rows with advantages and weights, and the rows' log-probabilities into one number.

`step_rows` fixes the contribution of every token to the whole step; `loss_of` only adds. The loss therefore does not
depend on how a step is split into rows, micro-batches or machines. torch is imported by the first call that needs it.
See docs/losses.md.
"""

from agentflow.learner.losses._loss import (
    Aggregation,
    LossSettings,
    PolicyLoss,
    TokenBatch,
    TokenLoss,
    TokenLosses,
    find_loss,
    loss_names,
    loss_of,
    merge_figures,
    policy_loss,
    register_loss,
)
from agentflow.learner.losses._step import advantages_of, rows_of, step_rows
from agentflow.learner.packing import Row, merge_rows

__all__ = [
    "Aggregation",
    "LossSettings",
    "PolicyLoss",
    "Row",
    "TokenBatch",
    "TokenLoss",
    "TokenLosses",
    "advantages_of",
    "find_loss",
    "loss_names",
    "loss_of",
    "merge_figures",
    "merge_rows",
    "policy_loss",
    "register_loss",
    "rows_of",
    "step_rows",
]
