"""From episodes to the rows of a step: advantages, weights, and an account of what stayed outside."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentflow.errors import LossFailure
from agentflow.learner._rows import Row
from agentflow.learner._samples import Sample
from agentflow.learner.losses._advantages import advantages_of, equal_groups
from agentflow.learner.losses._settings import LossSettings
from agentflow.learner.losses._weights import call_weights
from agentflow.trajectory import Tokens

__all__ = ["Step", "rows_of", "step_of"]

CUT = "length"
"""How a call ends that was cut at the most tokens it could have."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What enters one step."""

    rows: list[Row]
    """One for each call that has a trained token, in the order of the samples."""
    figures: dict[str, float]
    """Groups, rewards and advantages; tokens that are trained, and those that are not, by the reason."""


def rows_of(samples: Sequence[Sample], settings: LossSettings) -> list[Row]:
    """The rows of a step: one for each call, its advantage and its weight in the whole step with it.

    :raises LossFailure: if a sample can't be trained on: a reward that is no number, log-probabilities that are missing.
    """
    return step_of(samples, settings).rows


def step_of(samples: Sequence[Sample], settings: LossSettings) -> Step:
    """The rows of a step, and figures about them.

    :raises LossFailure: if a sample can't be trained on: a reward that is no number, log-probabilities that are missing.
    """
    _refuse_unusable(samples, settings)
    equal = equal_groups(samples, settings)
    dropped = {position for group in equal for position in group} if settings.filter_groups else set[int]()
    kept = [sample for position, sample in enumerate(samples) if position not in dropped]
    advantages = advantages_of(kept, settings)
    rows = _rows(kept, advantages.tolist(), settings)
    calls = [call for sample in kept for call in sample.calls]
    groups = len({sample.task for sample in samples})
    figures = {
        "groups/count": float(groups),
        "groups/equal_share": len(equal) / groups if groups else 0.0,
        "groups/dropped": float(len(equal)) if settings.filter_groups else 0.0,
        "episodes/count": float(sum(sample.multiplicity for sample in samples)),
        "episodes/distinct": float(len(samples)),
        "reward/mean": _mean(samples),
        "advantage/largest": float(np.abs(advantages).max(initial=0.0)),
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
    return Step(rows, figures)


def _rows(samples: Sequence[Sample], advantages: Sequence[float], settings: LossSettings) -> list[Row]:
    calls = [
        (episode, call)
        for episode, sample in enumerate(samples)
        for call in sample.calls
        if _trained(call) and not _left_out(call, settings)
    ]
    weights = call_weights(
        [_trained(call) for _, call in calls],
        [episode for episode, _ in calls],
        [samples[episode].multiplicity for episode, _ in calls],
        settings,
    )
    return [
        _row(call, unit, advantages[episode], float(weight), samples[episode].temperature)
        for unit, ((episode, call), weight) in enumerate(zip(calls, weights, strict=True))
    ]


def _row(call: Tokens, unit: int, advantage: float, weight: float, temperature: float) -> Row:
    trained = np.zeros(len(call.prompt) + len(call.sampled), np.bool_)
    trained[max(len(call.prompt), 1) :] = True
    number = _trained(call)
    behaviour = call.logprobs[-number:] if call.logprobs else (np.nan,) * number
    return Row(
        ids=np.array(call.prompt + call.sampled, np.int32),
        trained=trained,
        behaviour=np.array(behaviour, np.float32),
        advantages=np.full(number, advantage, np.float32),
        weights=np.full(number, weight, np.float64),
        units=np.full(number, unit, np.int32),
        temperature=temperature,
    )


def _trained(call: Tokens) -> int:
    """How many tokens of a call can be trained: nothing predicts the first token of all."""
    return len(call.sampled) - (0 if call.prompt else min(1, len(call.sampled)))


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
        if sample.multiplicity < 1:
            raise LossFailure(
                f"episode {sample.id} of task {sample.task}: it was drawn {sample.multiplicity} times"
            )
        for position, call in enumerate(sample.calls):
            written = settings.name == "cross_entropy" and not call.logprobs
            if not written and len(call.logprobs) != len(call.sampled):
                raise LossFailure(
                    f"call {position} of episode {sample.id}: {len(call.sampled)} tokens were sampled, but there are "
                    f"{len(call.logprobs)} log-probabilities; the engine must give them"
                )
            if not np.isfinite(call.logprobs).all():
                raise LossFailure(
                    f"call {position} of episode {sample.id}: a log-probability is no finite number"
                )
