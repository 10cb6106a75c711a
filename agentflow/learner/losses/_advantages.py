"""Advantages: rewards compared within the group of a task."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentflow.learner._groups import Sample
from agentflow.learner.losses._settings import LossSettings

FLOOR = 1e-6
"""Added to the standard deviation before dividing by it."""


def advantages_of(samples: Sequence[Sample], settings: LossSettings) -> NDArray[np.float64]:
    """Return the advantage of each episode, which counts as often as its multiplicity, however many turns it has.

    The advantages of a group of one, or with equal rewards, are 0. See docs/losses.md.
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
    """Return the rewards, reduced for episodes with a call near the token limit."""
    rewards = np.array([sample.reward for sample in samples], np.float64)
    if settings.overlong_limit is None:
        return rewards
    longest = np.array([max((len(call.sampled) for call in sample.calls), default=0) for sample in samples])
    beyond = longest - (settings.overlong_limit - settings.overlong_buffer)
    share = np.clip(beyond / max(settings.overlong_buffer, 1), 0.0, 1.0)
    return rewards - settings.overlong_penalty * share


def equal_groups(samples: Sequence[Sample], settings: LossSettings) -> list[list[int]]:
    """Return the groups whose rewards are all equal, including groups of one, as positions of their episodes."""
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
        # Handled separately: the rounded mean of equal numbers may differ from them.
        return np.zeros_like(rewards)
    number = counts.sum()
    distance = rewards - (rewards * counts).sum() / number
    if settings.baseline == "leave_one_out":
        return distance * number / (number - 1)
    if not settings.divide_by_std:
        return distance
    deviation = np.sqrt((counts * distance**2).sum() / (number - 1))
    return distance / (deviation + FLOOR)
