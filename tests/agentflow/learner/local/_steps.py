"""Fixed episodes and rows, and a backbone of a tiny model."""

from pathlib import Path
from typing import Any

import numpy as np

from agentflow.learner import Sample
from agentflow.learner.local import LocalBackbone, OptimizerSettings, PolicySettings
from agentflow.learner.losses import LossSettings, rows_of
from agentflow.learner.packing import Row
from agentflow.trace import Tokens

LOSS = LossSettings(kl_coef=0.0)
"""Flow-GRPO, without a reference."""
# AdamW divides by the size of a gradient: without an epsilon, one that is nothing but rounding goes as far as any.
QUICK = OptimizerSettings(learning_rate=1e-2, adam_epsilon=1e-3)
"""Goes far with each step, and to the same place however sums are rounded."""


def some_rows(seed: int = 0, *, loss: LossSettings = LOSS, tasks: int = 3, prompt: int = 8) -> list[Row]:
    """The rows of some episodes of two calls each, four to a task."""
    draw = np.random.default_rng(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.integers(2, 64, count).tolist())

    def call(read: tuple[int, ...], count: int) -> Tokens:
        logprobs = tuple((-4.0 + draw.random(count)).tolist())
        return Tokens(prompt=read, sampled=tokens(count), logprobs=logprobs)

    samples: list[Sample] = []
    for task in range(tasks):
        asked = tokens(prompt)
        for number in range(4):
            first = call(asked, 5)
            second = call(first.prompt + first.sampled + tokens(2), 4)
            reward = float(number % 2 if number < 3 else draw.random())
            samples.append(
                Sample(task=f"{task}", id=f"{task}.{number}", reward=reward, calls=(first, second))
            )
    return rows_of(samples, loss)


def backbone_of(
    folder: Path, *, dtype: str = "float32", optimizer: OptimizerSettings | None = None, **policy: object
) -> LocalBackbone:
    """A backbone that learns quickly."""
    said = {"model": str(folder), "dtype": dtype, "threads": 1, **policy}
    settings = PolicySettings.model_validate(said)
    return LocalBackbone(settings, optimizer or QUICK)


def weights_of(backbone: LocalBackbone) -> dict[str, Any]:
    """Its weights, to compare."""
    return {name: weight.detach().clone() for name, weight in backbone.model.named_parameters()}
