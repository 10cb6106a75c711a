# pyright: basic, reportMissingImports=false
"""Our losses as verl calls them: those of its registry, and the loss of a step as a sum over rows."""

from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.metric import Metric

from agentflow.errors import LossFailure
from agentflow.learner._rows import Row
from agentflow.learner.losses import LossSettings, loss_of
from agentflow.learner.verl._inside._theirs import Theirs

__all__ = ["LARGEST", "MEANS", "OURS", "RowLoss", "flow_grpo_advantages", "rows_in"]

OURS = "agentflow_"
"""How the fields begin that verl carries for us."""
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
"""Those that are the largest of all."""
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
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_given: Theirs
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages as they came.

    They are of whole episodes, each counted once, and a row is only a part of one: who sees rows can't compute them.
    """
    advantages = token_level_rewards * response_mask
    return advantages, advantages


class RowLoss:
    """The loss of a step, as verl's workers call it for each micro-batch. It is a sum, so cuts change nothing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = LossSettings.model_validate(settings)

    def __call__(
        self, model_output: Theirs, data: Theirs, dp_group: Theirs = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        rows, masks = rows_in(data)
        # What stands at a token tells of the one after it.
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
            # verl leaves out a step whose gradient is no number.
            loss, figures = log_prob.sum() * torch.nan, {}
        # verl takes the mean over processes, of gradients and of figures, and a step is a sum.
        loss = loss * data["dp_size"]
        return loss, _told(figures, float(loss.detach()), data["dp_size"])


def _told(figures: dict[str, float], loss: float, processes: int) -> dict[str, Any]:
    """The figures so that verl adds them up rightly: all of them for each micro-batch, and means as sums."""
    tokens = figures.get("loss/tokens", 0.0) * processes
    told = {f"{OURS}tokens": Metric("sum", tokens), f"{OURS}loss": Metric("sum", loss)}
    for name in MEANS:
        told[OURS + name] = Metric("sum", figures.get(name, 0.0) * tokens)
    for name in LARGEST:
        told[OURS + name] = Metric("max", figures.get(name, 0.0))
    return told


def rows_in(data: Theirs) -> tuple[list[Row], list[torch.Tensor]]:
    """The rows of a micro-batch, and which tokens of each response are trained."""
    fields = {
        name: [one.cpu().numpy() for one in data[name].unbind()]
        for name in (*_FIELDS, *(OURS + name for name in ("reference", "proximal")))
        if name in data
    }
    rows, masks = list[Row](), list[torch.Tensor]()
    for place, ids in enumerate(fields["input_ids"]):
        mask = fields["response_mask"][place].astype(np.bool_)
        trained = np.concatenate([np.zeros(len(ids) - len(mask), np.bool_), mask])

        def of(name: str, place: int = place, mask: Theirs = mask) -> Theirs:
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
