"""Looking at rollouts: one process, one episode after the other, rewards, advantages and losses; no update.

Everything that is not a tool runs in the main thread, so a breakpoint in a reward, in a tool that awaits, or anywhere here
stops where it stands.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec

import aiohttp
import msgspec
from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.learner._config import FROZEN, POLICY, TrainConfig
from agentflow.learner._engine import policy_at
from agentflow.learner._episode_runner import open_stage
from agentflow.learner._group_rollout import Playing
from agentflow.learner._groups import Group, Played
from agentflow.learner._order import Draw, Order
from agentflow.learner._samples import Sample
from agentflow.learner.losses import LossSettings, advantages_of, loss_of, rows_of
from agentflow.models import OFFLINE, ModelSettings
from agentflow.rollout import Assignment
from agentflow.scoring import Metric
from agentflow.trajectory import Turn

__all__ = ["debug_rollouts"]

FEW = 2
"""Tasks of a step, and episodes of a task, where nothing says how many."""
_LONGEST = 200


class _Served(Struct):
    id: str


class _Models(Struct):
    data: list[_Served]


async def debug_rollouts(
    config: TrainConfig, assignment: Assignment, metric: Metric | None, say: Callable[[str], None]
) -> dict[str, float]:
    """Play a step's episodes, or several steps', and say what comes of each; the figures of the last step.

    :param say: is given one line at a time.
    :raises ConfigurationError: if something can't be used, in one line.
    """
    schedule = config.schedule
    size = _said(schedule.model_fields_set, "episodes_per_task", schedule.episodes_per_task)
    tasks = _said(schedule.model_fields_set, "tasks_per_step", schedule.tasks_per_step)
    figures: dict[str, float] = {}
    async with _playing(config, assignment, metric) as playing:
        order = Order(assignment.tasks, seed=config.seed, epochs=schedule.epochs)
        for step in range(1, (schedule.steps or 1) + 1):
            groups = [await _group(playing, draw, size, say) for draw in order.take(tasks)]
            if not groups:
                break
            figures = _account(
                step, [sample for group in groups for sample in group.samples], config.loss, say
            )
    return figures


@asynccontextmanager
async def _playing(
    config: TrainConfig, assignment: Assignment, metric: Metric | None
) -> AsyncGenerator[Playing]:
    rules = config.episodes
    models = await _models(config)
    async with open_stage(config, assignment, models, metric) as stage:
        yield Playing(
            stage,
            trained=rules.trained_roles,
            temperature=rules.temperature_in_training,
            seed=config.seed,
            at_once=1,
            seconds=rules.episode_seconds,
            tries=1,
        )


async def _models(config: TrainConfig) -> dict[str, ModelSettings]:
    """The policy is what a running server has, else the offline engine; nothing is started."""
    wanted = config.episodes.models
    if not config.engine.base_url:
        offline = ModelSettings(name=OFFLINE, vision=False)
        if config.episodes.agent == "single":
            raise ConfigurationError("engine.base_url: a single agent needs a model; name a running server")
        return {role: offline if model.name in (POLICY, FROZEN) else model for role, model in wanted.items()}
    name = config.engine.name or await _only_model(config)
    return {
        role: policy_at(model, config.engine, name) if model.name in (POLICY, FROZEN) else model
        for role, model in wanted.items()
    }


async def _only_model(config: TrainConfig) -> str:
    url = config.engine.base_url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {config.engine.api_key.get_secret_value()}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{url}/v1/models") as answer,
        ):
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read(), type=_Models).data[0].id
    except (aiohttp.ClientError, OSError, msgspec.MsgspecError, IndexError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigurationError(
            f"engine.base_url: {url} does not say what it serves: {why}; start it, or set engine.name"
        ) from None


def _said(said: set[str], name: str, value: int) -> int:
    return value if name in said else min(value, FEW)


async def _group(playing: Playing, draw: Draw, size: int, say: Callable[[str], None]) -> Group:
    """One episode after the other: each is told of before the next begins."""
    say(f"task {draw.task.id}: {_short(draw.task.question)}")
    places: list[Played | None] = []
    for member in range(size):
        played = await playing.one(draw.task, (draw.number, member))
        places.append(played)
        for line in _told(member, played):
            say(line)
    return playing.group_of(draw, places)


def _told(member: int, played: Played) -> list[str]:
    episode = played.episode
    lines = [f"  episode {member + 1}:"]
    if episode is not None:
        lines += [f"    {turn.number}. {_call(turn)} -> {_short(turn.result)}" for turn in episode.turns]
        why = (
            "" if episode.failure is None else f" ({episode.failure.kind}: {_short(episode.failure.message)})"
        )
        lines.append(f"    answer: {_short(episode.answer) or '(none)'}{why}")
    if played.failure is not None:
        lines.append(f"    left out: {played.failure.kind}: {_short(played.failure.message)}")
    else:
        lines.append(f"    reward: {played.reward:g}")
    return lines


def _call(turn: Turn) -> str:
    if turn.action is None:
        return turn.step.tool_name
    said = ", ".join(f"{name}={_short(str(value))}" for name, value in turn.action.arguments.items())
    return f"{turn.action.tool}({said})"


def _account(
    step: int, samples: Sequence[Sample], loss: LossSettings, say: Callable[[str], None]
) -> dict[str, float]:
    """What a step would make of them."""
    if not samples:
        say(f"step {step}: no episode counts")
        return {}
    advantages = advantages_of(samples, loss)
    for sample, advantage in zip(samples, advantages, strict=True):
        tokens = sum(len(call.sampled) for call in sample.calls)
        say(f"  {sample.id}: reward {sample.reward:g}, advantage {advantage:+.3f}, {tokens} tokens to train")
    figures = {"reward/mean": sum(sample.reward for sample in samples) / len(samples)}
    rows = rows_of(samples, loss)
    if not rows:
        say(
            f"step {step}: no tokens are known (they are with a server: engine.base_url), so there is no loss"
        )
        return figures
    if find_spec("torch") is None:
        say(f"step {step}: torch is missing, so there is no loss; pip install 'agentflow[train]'")
        return figures
    return figures | _loss(step, samples, loss, say)


def _loss(
    step: int, samples: Sequence[Sample], loss: LossSettings, say: Callable[[str], None]
) -> dict[str, float]:
    """The loss at the weights that sampled: every ratio is 1."""
    import torch

    # Without weights of its own, nothing is known of a reference.
    rows = rows_of(samples, loss.model_copy(update={"kl": 0.0}))
    width = max(len(row.behaviour) for row in rows)
    log_prob = torch.zeros(len(rows), width)
    for place, row in enumerate(rows):
        log_prob[place, : len(row.behaviour)] = torch.from_numpy(row.behaviour)  # pyright: ignore[reportUnknownMemberType] - torch is typed in part
    value, figures = loss_of(log_prob, rows, loss.model_copy(update={"kl": 0.0, "entropy": 0.0}))
    say(f"step {step}: {loss.name} is {value.item():+.6f} over {len(rows)} calls")
    return {**figures, "step/loss": value.item()}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
