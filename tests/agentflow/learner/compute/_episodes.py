"""Trees of calls as the tree engine grows them: every leaf is an episode, and their calls are shared."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from agentflow.learner import Sample
from agentflow.learner.compute import log_probs_by_row
from agentflow.learner.losses import LossSettings, rows_of
from agentflow.learner.packing import Row
from agentflow.trace import Tokens

__all__ = ["grown", "step"]

WORDS = 64


def grown(seed: int) -> list[Sample]:
    """Episodes of one or two tasks: leaves of trees, some of them drawn several times, with rewards of both kinds."""
    chance = np.random.default_rng(seed)
    samples: list[Sample] = []
    for task in range(1 + int(chance.integers(2))):
        open_paths: list[tuple[tuple[Tokens, ...], tuple[str, ...]]] = [((), ())]
        question = _words(chance, 1 + int(chance.integers(6)))
        for _ in range(1 + int(chance.integers(3))):
            open_paths = [
                ((*path, _call(path, question, chance)), (*nodes, node))
                for path, nodes in open_paths
                for node in _branches(nodes, 1 + int(chance.integers(3)))
            ][:6]
        if len(open_paths) == 1:
            open_paths.append(((_call((), question, chance),), ("9",)))
        temperature = float(chance.choice([1.0, 0.7]))
        for number, (calls, nodes) in enumerate(open_paths):
            # One is the best and one the worst, so that advantages have both signs.
            reward = float(number) if number < 2 else float(chance.random())
            samples.append(
                Sample(
                    task=str(task),
                    id=f"{task}.{number}",
                    reward=reward,
                    calls=calls,
                    nodes=nodes,
                    temperature=temperature,
                    multiplicity=1 + int(chance.integers(3)),
                )
            )
    return samples


def _branches(nodes: Sequence[str], count: int) -> list[str]:
    """The nodes of the calls after a path; a call without a sibling belongs to the node before it."""
    if not nodes:
        return [str(number) for number in range(count)]
    return [f"{nodes[-1]}-{number}" for number in range(count)] if count > 1 else [nodes[-1]]


def _call(path: Sequence[Tokens], question: tuple[int, ...], chance: np.random.Generator) -> Tokens:
    """A call that goes on from the path, with words of tools between."""
    before = question
    if path:
        before = path[-1].prompt + path[-1].sampled + _words(chance, int(chance.integers(4)))
    sampled = _words(chance, 1 + int(chance.integers(5)))
    return Tokens(prompt=before, sampled=sampled, logprobs=(0.0,) * len(sampled))


def _words(chance: np.random.Generator, number: int) -> tuple[int, ...]:
    return tuple(int(word) for word in chance.integers(1, WORDS, size=number))


def step(samples: Sequence[Sample], settings: LossSettings, model: nn.Module, seed: int) -> list[Row]:
    """The rows of a step whose policies are near to the model: the one that sampled, the one before, the reference."""
    rows = rows_of(samples, settings)
    chance = np.random.default_rng(seed)
    with torch.no_grad():
        now = log_probs_by_row(model, rows).double().numpy()

    def near(number: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return (now[number, :size] + chance.normal(size=size) * 0.15).astype(np.float32)

    return [
        replace(
            row,
            behaviour=near(number, len(row.units)),
            proximal=near(number, len(row.units)),
            reference=near(number, len(row.units)),
        )
        for number, row in enumerate(rows)
    ]
