"""Turn the samples of a step into rows with advantages and weights, and account for every token left out.

Advantages are rewards compared within the group of a task.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentflow.errors import LossFailure
from agentflow.learner._groups import Sample
from agentflow.learner.losses._loss import LossSettings
from agentflow.learner.packing import Row
from agentflow.trace import Tokens

FLOOR = 1e-6
"""Added to the standard deviation before dividing by it."""


CUT = "length"
"""Finish reason of a call that was truncated at its token limit."""
_NODE: Final = re.compile(r"[0-9]+(-[0-9]+)*")
_MAX_NAME: Final = 60
"""Maximum characters of a node in an error message."""


def rows_of(samples: Sequence[Sample], settings: LossSettings) -> list[Row]:
    """Return the rows of a step, one per call, with advantages and weights; see `step_rows`.

    See docs/losses.md for an example.

    :raises LossFailure: if a sample is unusable: its reward is not finite, or log-probabilities are missing.
    """
    return step_rows(samples, settings)[0]


def step_rows(samples: Sequence[Sample], settings: LossSettings) -> tuple[list[Row], dict[str, float]]:
    """Return the rows of a step in the order of the samples, and figures about them.

    Each call that has a trained token is a row. The figures count groups, rewards and advantages, trained tokens, and
    tokens left out by reason. See docs/losses.md.

    :raises LossFailure: if a sample is unusable: its reward is not finite, or log-probabilities are missing.
    """
    _refuse_unusable(samples, settings)
    equal = equal_groups(samples, settings)
    dropped = {position for group in equal for position in group} if settings.filter_groups else set[int]()
    kept = [sample for position, sample in enumerate(samples) if position not in dropped]
    advantages, episodes = call_advantages(kept, settings), advantages_of(kept, settings)
    rows = _rows(kept, advantages, settings)
    calls = [call for sample in kept for call in sample.calls]
    groups = len({sample.task for sample in samples})
    figures = {
        "groups/count": float(groups),
        "groups/equal_share": len(equal) / groups if groups else 0.0,
        "groups/dropped": float(len(equal)) if settings.filter_groups else 0.0,
        "episodes/count": float(sum(sample.multiplicity for sample in samples)),
        "episodes/distinct": float(len(samples)),
        "reward/mean": _mean(samples),
        "advantage/largest": _largest(advantages, episodes),
        "advantage/local_share": _local_share(advantages, episodes),
        "tokens/trained": float(sum(int(row.trained.sum()) for row in rows)),
        "tokens/read": float(sum(int((~row.trained).sum()) for row in rows)),
        "tokens/dropped_equal_group": float(sum(_sampled(samples[position]) for position in dropped)),
        "tokens/dropped_cut": float(sum(len(call.sampled) for call in calls if _left_out(call, settings))),
        "tokens/dropped_unpredicted": float(
            sum(1 for call in calls if call.sampled and not call.prompt and not _left_out(call, settings))
        ),
        "calls/count": float(len(calls)),
        "calls/cut_share": sum(call.finish == CUT for call in calls) / len(calls) if calls else 0.0,
    }
    return rows, figures


def call_weights(
    lengths: Sequence[int], episodes: Sequence[int], counts: Sequence[int], settings: LossSettings
) -> NDArray[np.float64]:
    """Return the weight of a token of each call in the loss of the step.

    Calls without a trained token, and episodes without such a call, do not count in any mean.

    :param lengths: trained tokens of each call.
    :param episodes: the episode of each call, numbered from 0.
    :param counts: multiplicity of each call's episode.
    """
    tokens = np.asarray(lengths, np.float64)
    episode = np.asarray(episodes, np.int64)
    times = np.asarray(counts, np.float64)
    is_trained = tokens > 0
    calls_in_episode = np.bincount(episode, is_trained)[episode] if len(episode) else tokens
    tokens_in_episode = np.bincount(episode, tokens)[episode] if len(episode) else tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        # Each episode is divided equally among its trained calls, so that it counts once in the sum.
        number_of_episodes = (times / calls_in_episode)[is_trained].sum()
        number_of_calls = times[is_trained].sum()
        by_call = settings.sequence == "call"
        sequences = number_of_calls if by_call else number_of_episodes
        match settings.loss_agg_mode:
            case "turn-mean":
                weights = times / (number_of_episodes * calls_in_episode * tokens)
            case "token-mean":
                weights = times / (times * tokens).sum()
            case "token-sum":
                weights = times
            case "seq-mean-token-sum":
                weights = times / sequences
            case "seq-mean-token-sum-norm":
                assert settings.length_scale is not None, "validated by the settings"
                weights = times / (sequences * settings.length_scale)
            case "seq-mean-token-mean":
                weights = times / (sequences * (tokens if by_call else tokens_in_episode))
    return np.where(is_trained, weights, 0.0)


def _rows(
    samples: Sequence[Sample], advantages: Sequence[NDArray[np.float64]], settings: LossSettings
) -> list[Row]:
    numbers = _trained_calls(samples, settings)
    calls = [samples[episode].calls[number] for episode, number in numbers]
    weights = call_weights(
        [_trained(call) for call in calls],
        [episode for episode, _ in numbers],
        [samples[episode].multiplicity for episode, _ in numbers],
        settings,
    )
    return [
        _row(
            call,
            ids,
            unit=unit,
            advantage=float(advantages[episode][number]),
            weight=float(weight),
            temperature=samples[episode].temperature,
        )
        for unit, ((episode, number), call, ids, weight) in enumerate(
            zip(numbers, calls, _ids_of(calls), weights, strict=True)
        )
    ]


def _ids_of(calls: Sequence[Tokens]) -> list[NDArray[np.int32]]:
    """Return all ids of each call; consecutive calls that continue each other share the array of the last."""
    arrays: list[NDArray[np.int32]] = []
    longest, array = (), np.zeros(0, np.int32)
    for call in reversed(calls):
        path = call.prompt + call.sampled
        if path != longest[: len(path)]:
            longest, array = path, np.array(path, np.int32)
        arrays.append(array[: len(path)])
    return arrays[::-1]


def trained_calls(samples: Sequence[Sample], settings: LossSettings) -> list[tuple[int, int]]:
    """Return the call of each row of `step_rows`: the position of its sample, and its number there."""
    equal = equal_groups(samples, settings) if settings.filter_groups else []
    dropped = {position for group in equal for position in group}
    kept = [position for position in range(len(samples)) if position not in dropped]
    calls = _trained_calls([samples[position] for position in kept], settings)
    return [(kept[index], number) for index, number in calls]


def _trained_calls(samples: Sequence[Sample], settings: LossSettings) -> list[tuple[int, int]]:
    return [
        (position, number)
        for position, sample in enumerate(samples)
        for number, call in enumerate(sample.calls)
        if is_trained(call, settings)
    ]


def _row(
    call: Tokens, ids: NDArray[np.int32], *, unit: int, advantage: float, weight: float, temperature: float
) -> Row:
    count = _trained(call)
    logprobs = call.logprobs[-count:] if call.logprobs else (np.nan,) * count
    return Row(
        ids=ids,
        trained=np.arange(len(ids)) >= max(len(call.prompt), 1),
        behaviour=np.array(logprobs, np.float32),
        advantages=np.full(count, advantage, np.float32),
        weights=np.full(count, weight, np.float64),
        units=np.full(count, unit, np.int32),
        temperature=temperature,
    )


def _trained(call: Tokens) -> int:
    """Return the number of trainable tokens of a call; the first token of a row has no prediction."""
    return len(call.sampled) - (0 if call.prompt else min(1, len(call.sampled)))


def is_trained(call: Tokens, settings: LossSettings) -> bool:
    """Return true if tokens of the call are in the loss."""
    return bool(_trained(call)) and not _left_out(call, settings)


def _left_out(call: Tokens, settings: LossSettings) -> bool:
    return call.finish == CUT and not settings.train_cut


def _sampled(sample: Sample) -> int:
    return sum(len(call.sampled) for call in sample.calls)


def _mean(samples: Sequence[Sample]) -> float:
    counts = [sample.multiplicity for sample in samples]
    return float(np.average([sample.reward for sample in samples], weights=counts)) if samples else 0.0


def _refuse_unusable(samples: Sequence[Sample], settings: LossSettings) -> None:
    for sample in samples:
        if not np.isfinite(sample.reward):
            raise LossFailure(f"episode {sample.id} of task {sample.task}: its reward is {sample.reward}")
        _refuse_misplaced(sample)
        if not np.isfinite(sample.turn_rewards).all():
            raise LossFailure(f"episode {sample.id} of task {sample.task}: a turn reward is not finite")
        if sample.multiplicity < 1:
            raise LossFailure(
                f"episode {sample.id} of task {sample.task}: its multiplicity is {sample.multiplicity}; it must be positive"
            )
        for position, call in enumerate(sample.calls):
            supervised = settings.name == "cross_entropy" and not call.logprobs
            if not supervised and len(call.logprobs) != len(call.sampled):
                raise LossFailure(
                    f"call {position} of episode {sample.id}: {len(call.sampled)} tokens were sampled, but there are "
                    f"{len(call.logprobs)} log-probabilities; the engine must return them"
                )
            if not np.isfinite(call.logprobs).all():
                raise LossFailure(f"call {position} of episode {sample.id}: a log-probability is not finite")


def _refuse_misplaced(sample: Sample) -> None:
    """Refuse turn rewards and nodes that do not belong to the calls."""
    nodes, episode = sample.nodes or (), f"episode {sample.id} of task {sample.task}"
    for name, values in (("turn rewards", sample.turn_rewards), ("nodes", nodes)):
        if values and len(values) != len(sample.calls):
            raise LossFailure(
                f"{episode}: {len(sample.calls)} calls, but {len(values)} {name}; give one for each call, or none"
            )
    for number, node in enumerate(nodes):
        if not _NODE.fullmatch(node):
            raise LossFailure(
                f"{episode}: call {number} has the node {node[:_MAX_NAME]!r}; a node is a path of numbers, such as 0-1"
            )
    for number, (before, node) in enumerate(pairwise(nodes), 1):
        if not f"{node}-".startswith(f"{before}-"):
            raise LossFailure(
                f"{episode}: call {number} is at node {node[:_MAX_NAME]}, which is not below {before[:_MAX_NAME]}, the node "
                "of the call before it"
            )


def advantages_of(samples: Sequence[Sample], settings: LossSettings) -> NDArray[np.float64]:
    """Return the advantage of each episode, which counts as often as its multiplicity, however many turns it has.

    The advantages of a group of one, or with equal rewards, are 0. See docs/losses.md.
    """
    rewards = shaped_rewards(samples, settings)
    if settings.baseline == "none":
        return rewards
    counts = _counts(samples)
    advantages = np.zeros(len(samples))
    for group in _groups(samples):
        advantages[group] = _within(rewards[group], counts[group], settings)
    return advantages


def call_advantages(samples: Sequence[Sample], settings: LossSettings) -> list[NDArray[np.float64]]:
    """Return the advantage of each call of each episode: its credit, and that of the turn rewards from the call on.

    The credit is the advantage of the episode, or depends on the node of the call. Turn rewards are compared with all turn
    rewards of the group, and summed over the call and those after it. See docs/losses.md.

    :raises LossFailure: if turn rewards or nodes do not belong to the calls.
    """
    for sample in samples:
        _refuse_misplaced(sample)
    whole = advantages_of(samples, settings)
    advantages = [np.full(len(sample.calls), whole[position]) for position, sample in enumerate(samples)]
    if settings.credit == "tree_grpo":
        for position, within in _tree_advantages(samples, settings):
            advantages[position] += within
    elif settings.credit != "episode":
        for position, credits in _node_credits(samples, settings):
            advantages[position] = credits
    for group in _groups(samples):
        if not any(any(samples[position].turn_rewards) for position in group):
            continue
        turns = [
            np.array(samples[position].turn_rewards or [0.0] * len(samples[position].calls))
            for position in group
        ]
        rewards = np.concatenate(turns)
        counts = [
            np.full(len(turn), float(samples[position].multiplicity))
            for position, turn in zip(group, turns, strict=True)
        ]
        if settings.baseline != "none" and len(rewards):
            rewards = _within(rewards, np.concatenate(counts), settings)
        ends = np.cumsum([len(turn) for turn in turns])[:-1]
        for position, sums in zip(group, np.split(rewards, ends), strict=True):
            advantages[position] = advantages[position] + sums[::-1].cumsum()[::-1]
    return advantages


def _tree_advantages(samples: Sequence[Sample], settings: LossSettings) -> Iterator[tuple[int, float]]:
    """Yield the advantage of each episode of a tree within its tree."""
    rewards, counts = shaped_rewards(samples, settings), _counts(samples)
    trees: dict[tuple[str, str], list[int]] = {}
    for position, sample in enumerate(samples):
        if sample.nodes:
            trees.setdefault((sample.task, sample.nodes[0].partition("-")[0]), []).append(position)
    for tree in trees.values():
        yield from zip(tree, _within(rewards[tree], counts[tree], settings), strict=True)


def _node_credits(
    samples: Sequence[Sample], settings: LossSettings
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the credit of the calls of each episode of a tree."""
    rewards, counts = shaped_rewards(samples, settings), _counts(samples)
    for group in _groups(samples):
        members = [samples[position] for position in group]
        credits = _credit_of_nodes(members, rewards[group], counts[group], settings)
        for position, sample in zip(group, members, strict=True):
            if sample.nodes:
                yield position, np.array([credits[node] for node in sample.nodes])


def _credit_of_nodes(
    samples: Sequence[Sample],
    rewards: NDArray[np.float64],
    counts: NDArray[np.float64],
    settings: LossSettings,
) -> dict[str, float]:
    """Return the credit of each node of a group, from the values of its nodes."""
    below = _episodes_below(samples)
    if np.ptp(rewards) == 0:
        return dict.fromkeys(below, 0.0)
    is_divided = settings.divide_by_std and settings.baseline == "group"
    scale = _deviation(rewards, counts) + FLOOR if is_divided else 1.0

    def gain(node: str, ancestor: str) -> float:
        """Return how much the value of a node exceeds that of an ancestor."""
        inside, around = below[node], below[ancestor]
        number, total = counts[inside].sum(), counts[around].sum()
        if number == total or np.ptp(rewards[around]) == 0:
            return 0.0
        sums = [(rewards[members] * counts[members]).sum() for members in (inside, around)]
        distance = sums[0] / number - sums[1] / total
        if settings.baseline == "leave_one_out":
            distance *= total / (total - number)
        return float(distance / scale)

    def credit(node: str) -> float:
        local = gain(node, node.rpartition("-")[0])
        if settings.credit == "siblings":
            return local
        return float((gain(node, "") + local) / np.sqrt(counts[below[node]].sum()))

    return {node: credit(node) for node in below if node}


def _episodes_below(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Return the positions of the episodes below each node of a group; the group itself is the node without a name."""
    below: dict[str, list[int]] = {"": list(range(len(samples)))}
    for position, sample in enumerate(samples):
        node = sample.nodes[-1] if sample.nodes else ""
        while node:
            below.setdefault(node, []).append(position)
            node = node.rpartition("-")[0]
    return below


def _local_share(calls: Sequence[NDArray[np.float64]], episodes: NDArray[np.float64]) -> float:
    """Return the share of calls with another advantage than their episode."""
    is_local = [~np.isclose(own, whole) for own, whole in zip(calls, episodes, strict=True)]
    return float(np.concatenate(is_local).mean()) if any(map(len, is_local)) else 0.0


def _largest(calls: Sequence[NDArray[np.float64]], episodes: NDArray[np.float64]) -> float:
    """Return the largest absolute advantage of a call, or of an episode without calls."""
    return max(
        (
            float(np.abs(advantages).max() if len(advantages) else abs(whole))
            for advantages, whole in zip(calls, episodes, strict=True)
        ),
        default=0.0,
    )


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
    return [
        group for group in _groups(samples) if np.ptp(rewards[group]) == 0 and _same_turns(samples, group)
    ]


def _same_turns(samples: Sequence[Sample], group: Sequence[int]) -> bool:
    return len({reward for position in group for reward in samples[position].turn_rewards or (0.0,)}) < 2


def _counts(samples: Sequence[Sample]) -> NDArray[np.float64]:
    return np.array([sample.multiplicity for sample in samples], np.float64)


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
    return distance / (_deviation(rewards, counts) + FLOOR)


def _deviation(rewards: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Return the sample standard deviation."""
    number = counts.sum()
    distance = rewards - (rewards * counts).sum() / number
    return float(np.sqrt((counts * distance**2).sum() / (number - 1)))
