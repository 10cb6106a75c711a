"""Inspect rollouts without training: one process, one episode at a time, with rewards, advantages and losses.

Everything but the tools runs in the main thread, so breakpoints work in rewards, in tools that await, and here.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import aiohttp
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS
from agentflow._http_client import open_session, read_answer
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.learner._config import FROZEN, POLICY, TrainConfig
from agentflow.learner._engine import policy_at
from agentflow.learner._episode_runner import open_episode_runner
from agentflow.learner._group_rollout import GroupRollout, GroupSettings
from agentflow.learner._groups import EpisodeResult, Group, Sample, TaskDraw
from agentflow.learner._sources import TaskOrder
from agentflow.learner.losses import LossSettings, advantages_of, loss_of, rows_of
from agentflow.learner.packing import Row
from agentflow.models import OFFLINE, ModelSettings, has_replicas
from agentflow.rollouts import Assignment
from agentflow.scoring import Metric
from agentflow.trace import Turn

DEFAULT_COUNT = 2
"""Default number of tasks per step and of episodes per task."""
_MAX_CHARS = 200


class _ServedModel(Struct):
    id: str


class _ServedModels(Struct):
    data: list[_ServedModel]


async def debug_rollouts(
    config: TrainConfig, assignment: Assignment, metric: Metric | None, say: Callable[[str], None]
) -> dict[str, float]:
    """Run the episodes of one or more steps and print each; return the figures of the last step.

    :param say: receives one line at a time.
    :raises ConfigurationError: if a setting can't be used.
    """
    schedule = config.schedule
    tasks, size = debug_counts(config)
    figures: dict[str, float] = {}
    models = await _models(config)
    async with open_episode_runner(config, assignment, models, metric) as runner:
        rollout = GroupRollout(runner, replace(GroupSettings.of(config), at_once=1, tries=1))
        order = TaskOrder(assignment.tasks, seed=config.seed, epochs=schedule.epochs)
        for step in range(1, (schedule.steps or 1) + 1):
            groups = [await _group(rollout, draw, size, say) for draw in order.take(tasks)]
            if not groups:
                break
            figures = report_step(
                step, [sample for group in groups for sample in group.samples], config.loss, say
            )
    return figures


def debug_counts(config: TrainConfig) -> tuple[int, int]:
    """Return the numbers of tasks per step and of episodes per task: 2, unless they are set. See docs/training.md."""
    schedule = config.schedule
    return (
        _count(schedule.model_fields_set, "tasks_per_step", schedule.tasks_per_step),
        _count(schedule.model_fields_set, "episodes_per_task", schedule.episodes_per_task),
    )


async def _models(config: TrainConfig) -> dict[str, ModelSettings]:
    """Return the models: the policy is that of a running server, otherwise the offline engine. Nothing is started."""
    wanted = config.episodes.models
    if not config.engine.base_url:
        offline = ModelSettings(name=OFFLINE, vision=False)
        if config.episodes.agent == "single":
            raise ConfigurationError("engine.base_url: a single agent needs a model; name a running server")
        return {role: offline if model.name in (POLICY, FROZEN) else model for role, model in wanted.items()}
    return await models_at_engine(config, wanted)


async def models_at_engine(
    config: TrainConfig, wanted: Mapping[str, ModelSettings]
) -> dict[str, ModelSettings]:
    """Return models, with the policy and its frozen copy at the running server of the settings. See docs/training.md.

    :raises ConfigurationError: if that server does not list its models.
    """
    name = config.engine.served_model_name or await _only_model(config)
    return {
        role: policy_at(model, config.engine, name) if model.name in (POLICY, FROZEN) else model
        for role, model in wanted.items()
    }


async def _only_model(config: TrainConfig) -> str:
    if has_replicas(config.engine.base_url):
        raise ConfigurationError("engine.served_model_name: name the model of the replicas")
    url = config.engine.base_url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {config.engine.api_key.get_secret_value()}"}
    try:
        async with (
            open_session(headers=headers) as session,
            session.get(f"{url}/v1/models") as answer,
        ):
            answer.raise_for_status()
            return msgspec.json.decode(await read_answer(answer), type=_ServedModels).data[0].id
    except (aiohttp.ClientError, OSError, *DECODE_ERRORS, IndexError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigurationError(
            f"engine.base_url: {url} does not list its models: {why}; start it, or set engine.served_model_name"
        ) from None


def _count(fields: set[str], name: str, value: int) -> int:
    return value if name in fields else min(value, DEFAULT_COUNT)


async def _group(rollout: GroupRollout, draw: TaskDraw, size: int, say: Callable[[str], None]) -> Group:
    """Run one episode after the other and print each."""
    say(f"task {draw.task.id}: {_short(draw.task.question)}")
    results: list[EpisodeResult | None] = []
    for member in range(size):
        result = await rollout.one(draw.task, (draw.number, member))
        results.append(result)
        for line in _lines(member, result):
            say(line)
    return rollout.group_of(draw, results)


def _lines(member: int, result: EpisodeResult) -> list[str]:
    episode = result.episode
    lines = [f"  episode {member + 1}:"]
    if episode is not None:
        lines += [f"    {turn.number}. {_call(turn)} -> {_short(turn.result)}" for turn in episode.turns]
        why = (
            "" if episode.failure is None else f" ({episode.failure.kind}: {_short(episode.failure.message)})"
        )
        lines.append(f"    answer: {_short(episode.answer) or '(none)'}{why}")
    if result.failure is not None:
        lines.append(f"    left out: {result.failure.kind}: {_short(result.failure.message)}")
    else:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {value:.3g}" for name, value in result.score_details.items()
        )
        lines.append(f"    reward: {result.reward:g}" + (f" ({parts})" if parts else ""))
    return lines


def _call(turn: Turn) -> str:
    if turn.action is None:
        return turn.step.tool_name
    arguments = ", ".join(f"{name}={_short(str(value))}" for name, value in turn.action.arguments.items())
    return f"{turn.action.tool}({arguments})"


def report_step(
    step: int, samples: Sequence[Sample], loss: LossSettings, say: Callable[[str], None]
) -> dict[str, float]:
    """Print the advantages and the loss of a step, and return its figures. See docs/training.md."""
    if not samples:
        say(f"step {step}: every episode failed")
        return {}
    advantages = advantages_of(samples, loss)
    for sample, advantage in zip(samples, advantages, strict=True):
        tokens = sum(len(call.sampled) for call in sample.calls)
        say(f"  {sample.id}: reward {sample.reward:g}, advantage {advantage:+.3f}, {tokens} tokens to train")
    figures = {"reward/mean": sum(sample.reward for sample in samples) / len(samples)}
    rows = rows_of(samples, loss)
    if not rows:
        say(f"step {step}: tokens are unknown without a server (engine.base_url), so there is no loss")
        return figures
    if find_spec("torch") is None:
        say(missing_extra(f"step {step}: no loss, which", "train"))
        return figures
    return figures | _loss(step, rows, loss, say)


def _loss(step: int, rows: Sequence[Row], loss: LossSettings, say: Callable[[str], None]) -> dict[str, float]:
    """Return the loss at the sampling weights, where every ratio is 1."""
    import torch

    log_prob = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(row.behaviour) for row in rows],  # pyright: ignore[reportUnknownMemberType] - torch is typed in part
        batch_first=True,
    )
    # There are no weights here, so no reference log-probabilities and no entropy either.
    value, figures = loss_of(log_prob, rows, loss.model_copy(update={"kl_coef": 0.0, "entropy_coef": 0.0}))
    say(f"step {step}: {loss.name} is {value.item():+.6f} over {len(rows)} calls")
    return {**figures, "step/loss": value.item()}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
