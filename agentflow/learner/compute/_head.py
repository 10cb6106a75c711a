"""The head: log-probabilities of labels, without all logits in memory."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Checkpointing is typed in part.
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["Asked", "label_scores"]

LOGITS = 2**24
"""So many logits at most stand in memory at once: 64 MB."""


class Asked(NamedTuple):
    """Labels, and the lines of logits that they are scored against; see `Packed`."""

    states: Tensor
    """(tokens, size) What the head reads."""
    places: Tensor
    """(p) The token after which each line is read."""
    temperatures: NDArray[np.float32]
    """(p) What the logits of each line are divided by."""
    lines: NDArray[np.int64]
    """(l) The line of each label, ascending."""
    labels: Tensor
    """(l) The labels."""


def label_scores(model: Any, asked: Asked) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """The log-probability of each label, and the entropy of its line.

    Lines are taken in portions, and computed again for the gradient if there are several.
    """
    head = _Head(model.get_output_embeddings(), asked.states.dtype)
    device = asked.states.device
    temperatures = torch.from_numpy(asked.temperatures).to(device)
    lines = torch.from_numpy(asked.lines).to(device)
    portion = max(1, LOGITS // model.config.get_text_config().vocab_size)
    cuts = [*range(0, len(asked.places), portion), len(asked.places)]
    labels = np.searchsorted(asked.lines, cuts).tolist()
    found: list[tuple[Tensor, Tensor]] = []
    for number in range(len(cuts) - 1):
        chosen, some = slice(cuts[number], cuts[number + 1]), slice(labels[number], labels[number + 1])
        parts = (
            asked.states[asked.places[chosen]],
            temperatures[chosen],
            lines[some] - cuts[number],
            asked.labels[some],
        )
        if len(cuts) > 2 and torch.is_grad_enabled():
            found.append(
                cast("Any", checkpoint(_portion, head, *parts, use_reentrant=False, preserve_rng_state=False))
            )
        else:
            found.append(_portion(head, *parts))
    log_probs, entropies = zip(*found, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


class _Head:
    """The last layer of a model, in no less than 32 bits: rounded logits are not those the engine sampled from."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        self._layer = layer
        self._precise = torch.promote_types(dtype, torch.float32)
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        # An adapter around the layer has a forward of its own, which is kept.
        if type(layer) is nn.Linear and self._precise != dtype:
            linear = cast("Any", layer)
            self._weight = linear.weight.to(self._precise)
            self._bias = None if linear.bias is None else linear.bias.to(self._precise)

    def __call__(self, states: Tensor) -> Tensor:
        """Logits."""
        if self._weight is None:
            return self._layer(states).to(self._precise)
        return nn.functional.linear(states.to(self._precise), self._weight, self._bias)


def _portion(
    head: _Head, states: Tensor, temperatures: Tensor, lines: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-probabilities and entropies of labels against some lines."""
    logits = head(states) / temperatures[:, None]
    total = torch.logsumexp(logits, -1)
    entropy = total - (torch.softmax(logits, -1) * logits).sum(-1)
    return logits[lines, labels] - total[lines], entropy[lines]
