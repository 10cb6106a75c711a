"""Losses: episodes become rows with advantages and weights, and log-probabilities of rows become one number.

`rows_of` decides how every token counts in the whole step; `loss_of` sums. So a loss does not depend on how a step is
cut into rows, micro-batches or machines. torch is loaded by the first call that needs it.
"""

from agentflow.learner._rows import Row, merge_rows
from agentflow.learner.losses import _policy as _policy  # the built-in losses register themselves
from agentflow.learner.losses._advantages import advantages_of
from agentflow.learner.losses._figures import merge_figures
from agentflow.learner.losses._loss_of import loss_of
from agentflow.learner.losses._registry import (
    Drawn,
    TokenLoss,
    TokenLosses,
    find_loss,
    loss_names,
    register_loss,
)
from agentflow.learner.losses._settings import Aggregation, LossSettings
from agentflow.learner.losses._signature import PolicyLoss, policy_loss
from agentflow.learner.losses._step import Step, rows_of, step_of

__all__ = [
    "Aggregation",
    "Drawn",
    "LossSettings",
    "PolicyLoss",
    "Row",
    "Step",
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
    "step_of",
]
