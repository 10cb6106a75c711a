# pyright: basic, reportMissingImports=false
"""Extensions that run in Trinity's own environment, named by their import path in its configuration.

They use Trinity's registries: a policy loss with the weights of rows, and a monitor that writes the figures of a step.
`python -m agentflow.learner.trinity._inside` runs the trainer and writes rows to its buffer. Nothing is patched.
"""

import json
import math
import os
from pathlib import Path

import numpy as np
import torch
from trinity.algorithm import KL_FN
from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn
from trinity.algorithm.utils import masked_mean
from trinity.common.experience import EID, Experience
from trinity.utils.monitor import Monitor

from agentflow.learner.packing import Row

FIGURES = "AGENTFLOW_TRINITY_FIGURES"
"""Environment variable: folder of the figures of steps, one file each."""


class WeightedSumLoss(PPOPolicyLossFn):
    """Trinity's PPO loss, summed over the tokens of a step: the advantages contain the weights of the rows.

    A sum stays the same however Trinity splits a step into micro-batches and devices; its means do not.
    """

    def __call__(self, logprob, old_logprob, action_mask, advantages, **kwargs):  # noqa: ANN001, ANN003, ANN204
        """Return the loss and its figures."""
        # The metaclass has wrapped the inherited method, too: it takes Trinity's names.
        mean, figures = super().__call__(
            logprob=logprob, old_logprob=old_logprob, action_mask=action_mask, advantages=advantages
        )
        return mean * (action_mask.sum() + 1e-8) * _processes(), figures


class WeightedSumLossWithKL(PPOPolicyLossFn):
    """The same loss with the KL divergence from Trinity's reference policy, weighted as the advantages are.

    Trinity's own KL loss has no weights, and its means differ by micro-batch.
    """

    def __init__(self, kl_fn, kl_coef, **arguments) -> None:  # noqa: ANN001, ANN003
        """:param kl_fn: name of one of Trinity's KL functions."""
        super().__init__(**arguments)
        self._clipped = WeightedSumLoss(**arguments)
        self._kl = KL_FN.get(kl_fn)(kl_coef=kl_coef)

    def __call__(self, logprob, old_logprob, action_mask, advantages, ref_logprob, returns, **kwargs):  # noqa: ANN001, ANN003, ANN204
        """Return the loss and its figures; `returns` has the weight of each token."""
        loss, figures = self._clipped(
            logprob=logprob, old_logprob=old_logprob, action_mask=action_mask, advantages=advantages
        )
        distance = self._kl.calculate_kl(logprob, ref_logprob)
        kl = (distance * returns).where(action_mask.bool(), 0.0).sum() * _processes()
        return loss + self._kl.kl_coef * kl, figures | {"kl": masked_mean(distance, action_mask).item()}


def _processes() -> int:
    """Return their number: they average their gradients."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


class FigureMonitor(Monitor):
    """Writes the figures of each step; a file exists only after a step that succeeded."""

    def __init__(self, project, group, name, role, config=None) -> None:  # noqa: ANN001
        """Remember the folder."""
        super().__init__(project, name, role, config)
        self._folder = Path(os.environ[FIGURES])

    def log(self, data, step, commit=False) -> None:  # noqa: ANN001
        """Write the figures of a step."""
        figures = {
            name: float(value)
            for name, value in data.items()
            if isinstance(value, (int, float, np.number)) or getattr(value, "ndim", None) == 0
        }
        self._folder.mkdir(exist_ok=True)
        unfinished = self._folder / f"{step}.unfinished"
        unfinished.write_text(json.dumps(figures))
        unfinished.rename(self._folder / f"{step}.json")

    def close(self) -> None:
        """Close nothing."""


def experience_of(row: Row, step: int, number: int) -> Experience:
    """Return a row as an experience: tokens, old log-probabilities, action mask, advantages times weights, and weights."""
    start = int(np.argmax(row.trained))
    mask = row.trained[start:]

    def spread(values: np.ndarray) -> torch.Tensor:
        found = np.zeros(len(mask), np.float32)
        found[mask] = values
        return torch.from_numpy(found)

    return Experience(
        eid=EID(batch=step, task=number),
        tokens=torch.from_numpy(row.ids.astype(np.int32)),
        prompt_length=start,
        logprobs=spread(row.behaviour),
        action_mask=torch.from_numpy(mask.copy()),
        advantages=spread((row.advantages.astype(np.float64) * row.weights).astype(np.float32)),
        # Trinity's field for a critic, of which there is none.
        returns=spread(row.weights.astype(np.float32)),
        # Without a reward Trinity ignores the log-probabilities; nothing else reads it.
        reward=0.0,
        info={"model_version": step - 1},
    )


def empty_experience(step: int, number: int) -> Experience:
    """Return an experience that adds nothing to a loss."""
    nothing = torch.zeros(1)
    return Experience(
        eid=EID(batch=step, task=number),
        tokens=torch.zeros(2, dtype=torch.int32),
        prompt_length=1,
        logprobs=nothing,
        action_mask=torch.zeros(1, dtype=torch.bool),
        advantages=nothing.clone(),
        returns=nothing.clone(),
        reward=0.0,
        info={"model_version": step - 1},
    )


def experiences_of(rows: list[Row], step: int, size: int) -> list[Experience]:
    """Return the experiences of a step, filled up to the size of Trinity's batches."""
    if len(rows) > size:
        raise ValueError(f"{len(rows)} rows for a batch of {size}")
    if not all(math.isfinite(value) for row in rows for value in row.behaviour):
        raise ValueError("a log-probability is not finite")
    found = [experience_of(row, step, number) for number, row in enumerate(rows)]
    return found + [empty_experience(step, number) for number in range(len(rows), size)]
