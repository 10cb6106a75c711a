"""How much better than expected each episode was: rewards compared within the group of a task."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentflow.learner._samples import Sample
from agentflow.learner.losses._settings import LossSettings

__all__ = ["advantages_of", "equal_groups", "shaped_rewards"]

FLOOR = 1e-6
"""What is added to a deviation that is divided by."""


def advantages_of(samples: Sequence[Sample], settings: LossSettings) -> NDArray[np.float64]:
    """The advantage of each episode. An episode counts once, however many turns it has, times its multiplicity.

    A group of one, and one whose rewards are all equal, has nothing to tell: its advantages are 0.
    """
    rewards = shaped_rewards(samples, settings)
    if settings.baseline == "none":
        return rewards
    counts = np.array([sample.multiplicity for sample in samples], np.float64)
    advantages = np.zeros(len(samples))
    for group in _groups(samples):
        advantages[group] = _within(rewards[group], counts[group], settings)
    return advantages


def shaped_rewards(samples: Sequence[Sample], settings: LossSettings) -> NDArray[np.float64]:
    """The rewards, lowered where a call came near the most tokens it could have."""
    rewards = np.array([sample.reward for sample in samples], np.float64)
    if settings.overlong_limit is None:
        return rewards
    longest = np.array([max((len(call.sampled) for call in sample.calls), default=0) for sample in samples])
    beyond = longest - (settings.overlong_limit - settings.overlong_buffer)
    share = np.clip(beyond / max(settings.overlong_buffer, 1), 0.0, 1.0)
    return rewards - settings.overlong_penalty * share


def equal_groups(samples: Sequence[Sample], settings: LossSettings) -> list[list[int]]:
    """The groups whose rewards are all equal, a group of one among them, by the positions of their episodes."""
    rewards = shaped_rewards(samples, settings)
    return [group for group in _groups(samples) if np.ptp(rewards[group]) == 0]


def _groups(samples: Sequence[Sample]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for position, sample in enumerate(samples):
        groups.setdefault(sample.task, []).append(position)
    return list(groups.values())


def _within(
    rewards: NDArray[np.float64], counts: NDArray[np.float64], settings: LossSettings
) -> NDArray[np.float64]:
    if np.ptp(rewards) == 0:
        # Said apart: the mean of equal numbers is not always that number.
        return np.zeros_like(rewards)
    number = counts.sum()
    distance = rewards - (rewards * counts).sum() / number
    if settings.baseline == "leave_one_out":
        return distance * number / (number - 1)
    if not settings.divide_by_std:
        return distance
    deviation = np.sqrt((counts * distance**2).sum() / (number - 1))
    return distance / (deviation + FLOOR)
