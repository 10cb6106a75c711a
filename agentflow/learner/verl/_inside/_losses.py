# pyright: basic, reportMissingImports=false
"""AgentFlow's losses for verl: those of its registry, and the loss of a step as a sum over rows."""

from typing import Any, TypeAlias

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.metric import Metric

from agentflow.errors import LossFailure
from agentflow.learner.losses import LossSettings, loss_of
from agentflow.learner.packing import Row

VerlObject: TypeAlias = Any
"""An object of verl, which is not installed where types are checked."""
OURS = "agentflow_"
"""Prefix of AgentFlow's fields in verl's batches."""
MEANS = (
    "clip/low",
    "clip/high",
    "correction/left_out",
    "correction/mean",
    "correction/square",
    "engine/k1",
    "engine/k3",
    "reference/kl",
)
"""Figures of `loss_of` that are means over tokens."""
LARGEST = ("correction/weight_max", "engine/apart_max")
"""Figures that are maxima."""
_FIELDS = (
    "input_ids",
    "response_mask",
    "rollout_log_probs",
    "advantages",
    OURS + "weights",
    OURS + "units",
)


@register_adv_est("flow_grpo")
def flow_grpo_advantages(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_given: VerlObject
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the advantages that came with the rows.

    They belong to whole episodes, each counted once, and can't be computed from rows, which are parts of episodes.
    """
    advantages = token_level_rewards * response_mask
    return advantages, advantages


class RowLoss:
    """The loss of a step, as verl's workers call it for each micro-batch. It is a sum, so any split gives the same result."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = LossSettings.model_validate(settings)

    def __call__(
        self, model_output: VerlObject, data: VerlObject, dp_group: VerlObject = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        rows, masks = rows_in(data)
        # The entry at a token is the log-probability of the next one.
        log_prob = torch.nn.utils.rnn.pad_sequence(
            [
                line[-len(mask) - 1 : -1][mask]
                for line, mask in zip(model_output["log_probs"].unbind(), masks, strict=True)
            ],
            batch_first=True,
        )
        try:
            loss, figures = loss_of(log_prob, rows, self.settings)
        except LossFailure:
            # verl skips a step whose gradient is not finite.
            loss, figures = log_prob.sum() * torch.nan, {}
        # verl averages gradients and figures over processes, and a step is a sum.
        loss = loss * data["dp_size"]
        return loss, _told(figures, float(loss.detach()), data["dp_size"])


def _told(figures: dict[str, float], loss: float, processes: int) -> dict[str, Any]:
    """Return figures in a form that verl adds up correctly: all of them for each micro-batch, means as sums."""
    tokens = figures.get("loss/tokens", 0.0) * processes
    told = {f"{OURS}tokens": Metric("sum", tokens), f"{OURS}loss": Metric("sum", loss)}
    for name in MEANS:
        told[OURS + name] = Metric("sum", figures.get(name, 0.0) * tokens)
    for name in LARGEST:
        told[OURS + name] = Metric("max", figures.get(name, 0.0))
    return told


def rows_in(data: VerlObject) -> tuple[list[Row], list[torch.Tensor]]:
    """Return the rows of a micro-batch, and the trained tokens of each response."""
    fields = {
        name: [one.cpu().numpy() for one in data[name].unbind()]
        for name in (*_FIELDS, *(OURS + name for name in ("reference", "proximal")))
        if name in data
    }
    rows, masks = list[Row](), list[torch.Tensor]()
    for place, ids in enumerate(fields["input_ids"]):
        mask = fields["response_mask"][place].astype(np.bool_)
        trained = np.concatenate([np.zeros(len(ids) - len(mask), np.bool_), mask])

        def of(name: str, place: int = place, mask: VerlObject = mask) -> VerlObject:
            return fields[name][place][mask] if name in fields else None

        rows.append(
            Row(
                ids=ids.astype(np.int32),
                trained=trained,
                behaviour=of("rollout_log_probs").astype(np.float32),
                advantages=of("advantages").astype(np.float32),
                weights=of(OURS + "weights").astype(np.float64),
                units=of(OURS + "units").astype(np.int32),
                reference=of(OURS + "reference"),
                proximal=of(OURS + "proximal"),
            )
        )
        masks.append(torch.from_numpy(mask))
    return rows, masks
