"""How much each token counts in the loss of a step, so that rows, micro-batches and machines are only sums."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentflow.learner.losses._settings import LossSettings

__all__ = ["call_weights"]


def call_weights(
    lengths: Sequence[int], episodes: Sequence[int], counts: Sequence[int], settings: LossSettings
) -> NDArray[np.float64]:
    """The weight of a token of each call.

    Calls without a trained token, and episodes without such a call, count in no mean.

    :param lengths: trained tokens of each call.
    :param episodes: the episode of each call, numbered from 0.
    :param counts: how often each call's episode was drawn.
    """
    tokens = np.asarray(lengths, np.float64)
    episode = np.asarray(episodes, np.int64)
    times = np.asarray(counts, np.float64)
    speaks = tokens > 0
    calls_of = np.bincount(episode, speaks)[episode] if len(episode) else tokens
    tokens_of = np.bincount(episode, tokens)[episode] if len(episode) else tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        # Each episode in equal parts to its calls that speak: summed over them it counts once.
        number_of_episodes = (times / calls_of)[speaks].sum()
        number_of_calls = times[speaks].sum()
        by_call = settings.sequence == "call"
        sequences = number_of_calls if by_call else number_of_episodes
        match settings.aggregation:
            case "turn-mean":
                weights = times / (number_of_episodes * calls_of * tokens)
            case "token-mean":
                weights = times / (times * tokens).sum()
            case "token-sum":
                weights = times
            case "seq-mean-token-sum":
                weights = times / sequences
            case "seq-mean-token-sum-norm":
                assert settings.length_scale is not None, "settings ask for it"
                weights = times / (sequences * settings.length_scale)
            case "seq-mean-token-mean":
                weights = times / (sequences * (tokens if by_call else tokens_of))
    return np.where(speaks, weights, 0.0)
