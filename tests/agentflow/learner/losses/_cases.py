"""Episodes of any shape, and the smallest policy for them: a table of bigrams."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentflow.learner import Sample
from agentflow.learner.losses import LossSettings, loss_of
from agentflow.learner.packing import Row, longest_trained
from agentflow.trace import Tokens

WORDS = 11

SETTINGS: dict[str, LossSettings] = {
    "flow_grpo": LossSettings(),
    "flow_grpo decoupled": LossSettings(correction="mask"),
    "grpo": LossSettings(name="grpo", entropy_coef=0.01),
    "dapo": LossSettings(name="dapo"),
    "dr_grpo": LossSettings(name="dr_grpo", length_scale=16),
    "gspo": LossSettings(name="gspo", clip_ratio_low=0.1, clip_ratio_high=0.1),
    "cispo": LossSettings(name="cispo", kl_coef=0.01, kl_estimator="k2"),
    "reinforce": LossSettings(name="reinforce", correction="mask"),
    "reinforce cut": LossSettings(name="reinforce", correction_limit=1.05),
    "cross_entropy": LossSettings(name="cross_entropy"),
}
"""Every loss, and the ways of the correction."""


class Table:
    """A policy: the next token by the one before, and by how far along it is."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        numbers = np.random.default_rng(seed).normal(size=(WORDS, WORDS)) * 0.4
        self.weights = torch.tensor(numbers, dtype=dtype, requires_grad=True)

    def read(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """The log-probability of each trained token of each row, and the entropy there."""
        everything = self.weights.log_softmax(dim=1)
        entropies = -(everything.exp() * everything).sum(dim=1)
        width = longest_trained(rows)
        found: list[Tensor] = []
        entropy: list[Tensor] = []
        for row in rows:
            places = np.flatnonzero(row.trained)
            before = torch.from_numpy(row.ids[places - 1].astype(np.int64))
            label = torch.from_numpy(row.ids[places].astype(np.int64))
            room = (0, width - len(places))
            found.append(torch.nn.functional.pad(everything[before, label], room))
            entropy.append(torch.nn.functional.pad(entropies[before], room))
        return torch.stack(found), torch.stack(entropy)


def loss_and_gradient(
    rows: Sequence[Row], settings: LossSettings, dtype: torch.dtype
) -> tuple[float, NDArray[np.float64]]:
    """The loss of some rows, and the gradient of the table's weights."""
    policy = Table(dtype=dtype)
    log_prob, entropy = policy.read(rows)
    loss, _ = loss_of(log_prob, rows, settings, entropy)
    loss.backward()
    assert policy.weights.grad is not None
    return loss.item(), policy.weights.grad.double().numpy()


def episodes(seed: int, groups: int = 3, size: int = 4) -> list[Sample]:
    """Episodes of some tasks: calls of one conversation that go on from each other, with words of tools between."""
    chance = np.random.default_rng(seed)
    made: list[Sample] = []
    for group in range(groups):
        question = _words(chance, 2 + int(chance.integers(5)))
        for number in range(size):
            context, calls = question, list[Tokens]()
            for _ in range(1 + int(chance.integers(4))):
                sampled = _words(chance, int(chance.integers(7)))
                calls.append(
                    Tokens(prompt=context, sampled=sampled, logprobs=_log_probs(context, sampled, chance))
                )
                context = context + sampled + _words(chance, 1 + int(chance.integers(4)))
            made.append(
                Sample(
                    task=f"task {group}",
                    id=f"{group}.{number}",
                    reward=float(chance.integers(3)) / 2,
                    calls=tuple(calls),
                    multiplicity=1 + int(chance.integers(3)),
                )
            )
    return made


def with_policies(rows: Sequence[Row], *, proximal: bool) -> list[Row]:
    """The rows with the log-probabilities of a reference policy, and of the weights at the beginning of the step."""
    with torch.no_grad():
        reference = Table(seed=5).read(rows)[0].numpy()
        began = Table(seed=6).read(rows)[0].numpy() * 0.05 + Table(seed=0).read(rows)[0].numpy() * 0.95
    return [
        replace(
            row,
            reference=reference[number, : len(row.units)],
            proximal=began[number, : len(row.units)] if proximal else None,
        )
        for number, row in enumerate(rows)
    ]


def _words(chance: np.random.Generator, number: int) -> tuple[int, ...]:
    return tuple(int(word) for word in chance.integers(WORDS, size=number))


def _log_probs(
    context: tuple[int, ...], sampled: tuple[int, ...], chance: np.random.Generator
) -> tuple[float, ...]:
    """Near those of the policy, some of them far enough to be cut."""
    with torch.no_grad():
        table = Table().weights.log_softmax(dim=1).numpy()
    words = (*context, *sampled)
    start = len(context)
    return tuple(
        float(table[words[start + place - 1], words[start + place]] + chance.normal() * 0.15)
        for place in range(len(sampled))
    )
