# pyright: reportUnknownMemberType=false
"""What a loss looked like: figures of a part of a step, and how those of several parts become one."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from agentflow.learner.losses._registry import Drawn, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor

    from agentflow.learner.losses._correction import Correction

__all__ = ["COUNT", "figures_of", "merge_figures"]

COUNT = "loss/tokens"
"""How many tokens the other figures are means of."""
LARGEST = "_max"
"""The end of the name of a figure that is the largest one."""


def figures_of(
    drawn: Drawn,
    behaviour: "Tensor",
    costs: TokenLosses,
    correction: "Correction",
    apart: "Tensor | None",
    entropy: "Tensor | None",
) -> dict[str, float]:
    """Figures of some rows, each over their trained tokens."""
    import torch

    mask = drawn.mask
    count = int(mask.sum())
    if not count:
        return {COUNT: 0.0}
    with torch.no_grad():
        means = {
            "clip/low": costs.low.double(),
            "clip/high": costs.high.double(),
            "correction/left_out": (correction.factor == 0).double(),
        }
        largest = dict[str, "Tensor"]()
        apart_from_engine = drawn.log_prob.detach() - behaviour
        if bool(apart_from_engine[mask].isfinite().all()):  # What a person wrote has no engine.
            means["correction/mean"] = correction.weights
            means["correction/square"] = correction.weights.square()
            largest["correction/weight_max"] = correction.weights
            means["engine/k1"] = -apart_from_engine
            means["engine/k3"] = apart_from_engine.exp() - apart_from_engine - 1
            largest["engine/apart_max"] = apart_from_engine.abs()
        if apart is not None:
            means["reference/kl"] = apart.detach()
        if entropy is not None:
            means["policy/entropy"] = entropy.detach().double()
        found = [values[mask].mean() for values in means.values()]
        found += [values[mask].max() for values in largest.values()]
        numbers = cast("list[float]", torch.stack(found).tolist())
    return {COUNT: float(count), **dict(zip([*means, *largest], numbers, strict=True))}


def merge_figures(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The figures of a whole step from those of its parts: means by tokens, the largest of the largest."""
    parts = [part for part in parts if part.get(COUNT)]
    total = sum(part[COUNT] for part in parts)
    merged = {COUNT: total}
    for name in dict.fromkeys(name for part in parts for name in part if name != COUNT):
        having = [part for part in parts if name in part]
        if name.endswith(LARGEST):
            merged[name] = max(part[name] for part in having)
        else:
            tokens = sum(part[COUNT] for part in having)
            merged[name] = sum(part[name] * part[COUNT] for part in having) / tokens
    if merged.get("correction/square"):
        merged["correction/effective_share"] = merged["correction/mean"] ** 2 / merged["correction/square"]
    return merged
