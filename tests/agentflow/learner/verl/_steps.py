"""A step that verl and the local backbone both make."""

# pyright: reportUnknownVariableType=false
# safetensors is typed in part.

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from agentflow.learner import Sample
from agentflow.learner._policy import OptimizerSettings
from agentflow.learner.local import LocalBackbone
from agentflow.learner.losses import LossSettings, rows_of
from agentflow.learner.packing import Row
from agentflow.trace import Tokens

# AdamW divides by the size of a gradient: without an epsilon, one that is nearly 0 goes anywhere.
OPTIMIZER = OptimizerSettings(learning_rate=1e-2, weight_decay=0.0, adam_epsilon=1e-3)
LOSS = LossSettings(name="flow_grpo", kl_coef=0.05)


def episodes(local: LocalBackbone) -> list[Row]:
    """Rows of episodes of a few turns, sampled (as it were) by the policy that training began with."""
    random = np.random.default_rng(7)

    def call(turn: int) -> Tokens:
        number = int(random.integers(2, 7))
        return Tokens(
            prompt=tuple(random.integers(2, 60, 3 + 4 * turn).tolist()),
            sampled=tuple(random.integers(2, 60, number).tolist()),
            logprobs=(-4.0,) * number,
        )

    samples = [
        Sample(
            task=f"task-{number // 3}",
            id=str(number),
            reward=float(number % 3),
            calls=tuple(call(turn) for turn in range(1 + number % 2)),
            multiplicity=1 + number % 2,
        )
        for number in range(6)
    ]
    rows = rows_of(samples, LOSS)
    exact = local.log_probs(rows)
    return [replace(row, behaviour=found, reference=found) for row, found in zip(rows, exact, strict=True)]


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    return dict(load_file(folder / "model.safetensors"))
