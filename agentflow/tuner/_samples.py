"""Samples of an episode that a client played: the exact calls of each trained agent, with its reward."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Final

from agentflow.errors import AgentFlowError
from agentflow.gateway import EpisodeOutcome, PromptOrigin, RecordedCall, rewards_of, trained_tokens
from agentflow.learner import Sample, sample_of_calls
from agentflow.tuner._workflow import ONLY_AGENT

SEPARATOR: Final = "#"
"""Between an episode or group and the name of an agent."""
_CONTINUED: Final = frozenset({PromptOrigin.OPENING, PromptOrigin.APPENDED})


class UnusableOutcome(AgentFlowError):
    """An outcome that can't be trained on; the message is one line."""


def episode_samples(
    calls: Sequence[RecordedCall],
    outcome: EpisodeOutcome,
    *,
    group: str,
    id: str,
    temperature: float,
    version: int = 0,
) -> tuple[Sample, ...]:
    """Return an episode as samples: one for each trained agent that has a reward.

    Agents with names have groups of their own, `GROUP#AGENT`. Only answers that the client received are trained.

    :param version: weights at its beginning.
    :raises UnusableOutcome: if a reward is missing, not finite, or for an unknown call.
    """
    trained = [call for call in calls if call.trained and call.delivered]
    exact = trained_tokens(calls)
    agents = sorted({call.agent for call in trained}) or [ONLY_AGENT]
    rewards = checked_rewards(outcome, agents)
    _check_turns(outcome.turn_rewards, {call.id for call in calls})
    if any(call.origin is PromptOrigin.IMAGES for call in trained):
        raise UnusableOutcome(
            "a trained agent was sent images, and their exact tokens are not known; give images to an agent that is not "
            "trained, or write them as text"
        )
    if trained and not exact:
        raise UnusableOutcome(
            "the engine reported no tokens; name a vLLM that was started for training, or let the run start one"
        )
    samples: list[Sample] = []
    for agent in agents:
        if agent not in rewards:
            continue
        own = exact.get(agent, [])
        suffix = f"{SEPARATOR}{agent}" if agent else ""
        turns = [outcome.turn_rewards.get(call, 0.0) for call, _ in own]
        samples.append(
            sample_of_calls(
                [tokens for _, tokens in own],
                group=f"{group}{suffix}",
                id=f"{id}{suffix}",
                reward=rewards[agent],
                temperature=temperature,
                version=version,
                turn_rewards=turns if any(turns) else (),
                details=_details([call for call in trained if call.agent == agent], outcome),
            )
        )
    return tuple(samples)


def checked_rewards(outcome: EpisodeOutcome, agents: Collection[str]) -> dict[str, float]:
    """Return the reward of each agent.

    :raises UnusableOutcome: if there is none, or one is not finite.
    """
    rewards = rewards_of(outcome, dict.fromkeys(agents))
    if not rewards:
        given = (
            f"rewards of {', '.join(sorted(outcome.reward))}"
            if isinstance(outcome.reward, dict)
            else "no reward"
        )
        raise UnusableOutcome(f"the outcome has {given}, and the trained agents are {_names(agents)}")
    for agent, reward in rewards.items():
        if not isfinite(reward):
            raise UnusableOutcome(
                f"the reward{f' of {agent}' if agent else ''} is {reward}; return a finite number"
            )
    return rewards


def _check_turns(turns: Mapping[str, float], known: Collection[str]) -> None:
    for call, reward in turns.items():
        if call not in known:
            raise UnusableOutcome(f"turn_rewards: the episode has no call {call}")
        if not isfinite(reward):
            raise UnusableOutcome(f"turn_rewards: that of call {call} is {reward}; return a finite number")


def _details(calls: Sequence[RecordedCall], outcome: EpisodeOutcome) -> dict[str, float]:
    details = {
        "calls": float(len(calls)),
        "forks": float(sum(call.origin not in _CONTINUED for call in calls)),
        "constrained": float(sum(call.constrained for call in calls)),
        **{name: float(value) for name, value in outcome.metrics.items() if isfinite(value)},
    }
    return details if outcome.success is None else {**details, "success": float(outcome.success)}


def _names(agents: Collection[str]) -> str:
    return ", ".join(agent or '"" (the only one)' for agent in agents)
