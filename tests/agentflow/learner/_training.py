"""Training without an engine: an episode runner whose episodes depend only on their seeds."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec

from agentflow.learner import TrainConfig
from agentflow.learner._checkpoints import Checkpoints, RolloutStore
from agentflow.learner._group_rollout import GroupRollout, GroupSettings
from agentflow.learner._loop import Loop, LoopHooks, LoopPosition
from agentflow.learner._policy import OptimizerSettings, PolicySettings
from agentflow.learner._sources import BatchSource, SyncSource, TaskOrder
from agentflow.learner.local import LocalBackbone
from agentflow.learner.losses import LossSettings
from agentflow.scoring import Metric, OwnMetric
from agentflow.trace import Ending, Episode, Exchange, Solution, Task, Tokens, Usage
from tests.agentflow.learner._models import VOCABULARY

LOSS = LossSettings(kl_coef=0.0)


def some_tasks(count: int) -> list[Task]:
    """So many tasks, each with a right answer."""
    return [
        Task(index=number, id=f"t{number}", question=f"What is {number}?", references=("yes",))
        for number in range(count)
    ]


def an_episode(task: Task, seed: str, *, version: str = "", answer: str | None = None) -> Episode:
    """An episode of two calls; its tokens and its answer follow from the seed."""
    draw = Random(seed)
    prompt = (2, *(3 + ord(letter) % 32 for letter in task.id))
    calls: list[Tokens] = []
    for _ in range(2):
        sampled = tuple(draw.randrange(2, VOCABULARY) for _ in range(draw.randint(1, 6)))
        calls.append(Tokens(prompt=prompt, sampled=sampled, logprobs=(-4.0,) * len(sampled), version=version))
        prompt += (*sampled, 5)
    said = answer if answer is not None else draw.choice(["yes", "no"])
    return Episode(
        task=task,
        agent="team",
        ending=Ending.VERIFIED,
        solution=Solution("", said),
        exchanges=tuple(
            Exchange(key=f"{number}/next", role="planner", usage=Usage(), tokens=tokens, seconds=0.0)
            for number, tokens in enumerate(calls, 1)
        ),
    )


def is_yes(answer: str, task: Task) -> float:
    """1 for yes."""
    return float(answer in task.references)


class FakePlayer:
    """Plays episodes that follow from their seeds."""

    def __init__(
        self,
        *,
        reward: Callable[[str, Task], object] = is_yes,
        answer: Callable[[Task, str], str | None] = lambda _task, _seed: None,
        before: Callable[[Task, str], Awaitable[None]] | None = None,
        version: Callable[[], str] = lambda: "",
    ) -> None:
        self.metric: Metric = OwnMetric("reward", reward)
        self.played: list[tuple[str, str]] = []
        self._answer = answer
        self._before = before
        self._version = version

    async def play(
        self, task: Task, seed: str, *, temperature: float | None = None, max_turns: int | None = None
    ) -> Episode:
        """An episode."""
        del temperature, max_turns
        self.played.append((task.id, seed))
        version = self._version()
        if self._before is None:
            await anyio.lowlevel.checkpoint()
        else:
            await self._before(task, seed)
        return an_episode(task, seed, version=version, answer=self._answer(task, seed))


def playing_of(player: FakePlayer, **more: Any) -> GroupRollout:  # noqa: ANN401 - whatever it takes
    """Return the rollout of a runner's episodes."""
    hooks = {name: more.pop(name) for name in ("engine_ready", "on_result") if name in more}
    given: dict[str, Any] = {"trained": ("planner",), "temperature": 1.0, "seed": 7, **more}
    return GroupRollout(player, GroupSettings(**given), **hooks)


def policy_settings(model: Path) -> PolicySettings:
    """A tiny policy."""
    return PolicySettings(
        model=str(model), dtype="float32", device="cpu", gradient_checkpointing=False, threads=1
    )


def a_backbone(model: Path) -> LocalBackbone:
    """Return a local backbone of the model."""
    return LocalBackbone(policy_settings(model), OptimizerSettings(learning_rate=1e-2))


def a_loop(
    folder: Path,
    backbone: LocalBackbone,
    *,
    player: FakePlayer | None = None,
    source: BatchSource | None = None,
    loss: LossSettings = LOSS,
    eval_steps: int = 10,
    report: Callable[[int, Mapping[str, float]], None] | None = None,
    validate: Callable[[], Awaitable[Mapping[str, float]]] | None = None,
    **schedule: Any,  # noqa: ANN401 - any of its settings
) -> Loop:
    """A loop of small steps, as far as a checkpoint in the folder says."""
    small = {"steps": 5, "epochs": None, "tasks_per_step": 3, "episodes_per_task": 4, "save_steps": 100}
    config = config_of(loss=loss, schedule={**small, **schedule}, validation={"eval_steps": eval_steps})
    checkpoints = Checkpoints(folder / "checkpoints")
    order = TaskOrder(some_tasks(5), seed=7)
    rounds = SyncSource(playing_of(player or FakePlayer()), order, tasks=3, size=4, replace_equal=0.0)
    return Loop(
        config,
        source=source or rounds,
        backbone=backbone,
        rollouts=RolloutStore(folder / "rollouts"),
        checkpoints=checkpoints,
        position=msgspec.convert(checkpoints.load(backbone) or {}, LoopPosition),
        hooks=LoopHooks(report=report or tell_nobody, validate=validate),
    )


def tell_nobody(step: int, figures: Mapping[str, float]) -> None:
    """Nobody wants to know."""


def weights_of(backbone: LocalBackbone) -> dict[str, bytes]:
    """Every weight, to the bit."""
    return {name: weight.detach().numpy().tobytes() for name, weight in backbone.model.named_parameters()}


def config_of(**sections: object) -> TrainConfig:
    """Settings of a training run."""
    return TrainConfig.model_validate(sections)
