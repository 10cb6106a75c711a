"""Tuning without an engine: a gateway in this process whose model echoes, and a backbone that counts."""

import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray
from openai import AsyncOpenAI
from pydantic import SecretStr

from agentflow.errors import unwrap_group
from agentflow.gateway import (
    Answerer,
    EpisodeRegistry,
    EpisodeStore,
    GatewayClient,
    GatewaySettings,
)
from agentflow.learner import EvidenceSettings, Row, TaskOrder, TrainConfig
from agentflow.learner._checkpoints import Checkpoints, RolloutStore
from agentflow.learner._config import Schedule, ValidationSettings
from agentflow.learner._group_rollout import Validation
from agentflow.learner._loop import Loop, LoopHooks, LoopPosition, ProbeRows
from agentflow.learner._sources import SyncSource
from agentflow.learner.losses import LossSettings
from agentflow.trace import Task
from agentflow.tuner import GatewayRollout, PolicyEndpoint, WorkflowPlayers
from agentflow.tuner.judges import JudgeSpec, make_judge
from tests.agentflow.gateway._registry import EchoModel, served

TOKEN = "owner-token-of-tests"
WORKER_TOKEN = "worker-token-of-tests"
LOSS = LossSettings(kl_coef=0.0)


class Address(NamedTuple):
    """Address of a gateway."""

    url: str
    token: str


def some_tasks(count: int, **metadata: Any) -> list[Task]:  # noqa: ANN401 - any field
    """Return some tasks."""
    return [
        Task(
            index=number,
            id=f"t{number}",
            question=f"What is {number}?",
            references=("yes",),
            metadata=metadata,
        )
        for number in range(count)
    ]


@asynccontextmanager
async def gateway_at(
    folder: Path, settings: GatewaySettings | None = None, model: Answerer | None = None
) -> AsyncGenerator[Address]:
    """Serve all APIs of a gateway in this process."""
    given = (settings or GatewaySettings()).model_copy(
        update={"token": SecretStr(TOKEN), "worker_token": SecretStr(WORKER_TOKEN)}
    )
    policy = model or EchoModel()
    models = {
        name: policy if agent.trained else EchoModel(trained=False)
        for name, agent in given.agents_or_one().items()
    }
    url: list[str] = []
    async with (
        EpisodeStore(folder) as store,
        EpisodeRegistry(
            given,
            store,
            models,
            base_url=lambda: f"{url[0]}/v1",
        ) as registry,
        served(registry, given) as address,
    ):
        url.append(address)
        yield Address(address, TOKEN)


class CountingBackbone:
    """A backbone that counts its steps and keeps their rows."""

    def __init__(self) -> None:
        self.version = 0
        self.steps: list[list[Row]] = []

    def step(self, rows: Sequence[Row], loss: LossSettings) -> dict[str, float]:
        """Count."""
        del loss
        self.version += 1
        self.steps.append(list(rows))
        return {"step/loss": 0.0}

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """Return the behaviour."""
        del reference
        return [row.behaviour for row in rows]

    def export(self, folder: Path, *, durable: bool = True) -> Path:
        """Write nothing."""
        del durable
        return folder

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write the position."""
        folder.mkdir(parents=True)
        (folder / "position.json").write_text(json.dumps({"version": self.version, **position}))
        return folder

    def load(self, folder: Path) -> dict[str, object]:
        """Read the position."""
        position: dict[str, object] = json.loads((folder / "position.json").read_text())
        self.version = msgspec.convert(position.pop("version"), int)
        return position

    def close(self) -> None:
        """Do nothing."""


class Tuned(NamedTuple):
    """A short tuning."""

    backbone: CountingBackbone
    figures: list[dict[str, float]]


async def tuned(
    folder: Path,
    solve: Callable[..., object] | None,
    tasks: Sequence[Task],
    *,
    reward: JudgeSpec = "exact_match",
    backbone: CountingBackbone | None = None,
    settings: GatewaySettings | None = None,
    model: Answerer | None = None,
    held_out: Sequence[Task] = (),
    sandbox: Any = None,  # noqa: ANN401 - opens anything
    steps: int = 1,
    seconds: float = 60.0,
    width: int = 1,
    own_tasks: bool = False,
    evidence: EvidenceSettings | None = None,
    engine_ready: Callable[[], Coroutine[Any, Any, None]] | None = None,
    clients: Callable[[Address], Coroutine[Any, Any, None]] | None = None,
    **schedule: Any,  # noqa: ANN401 - any setting of the schedule
) -> Tuned:
    """Tune a workflow for some steps; without one, `clients` play."""
    backbone = backbone or CountingBackbone()
    figures: list[dict[str, float]] = []
    judge = make_judge(reward)
    small = {"steps": steps, "epochs": None, "tasks_per_step": 2, "episodes_per_task": 2}
    plan = Schedule.model_validate({**small, **schedule})

    def report(step: int, given: Mapping[str, float]) -> None:
        figures.append({"step": float(step), **given})

    async with (
        gateway_at(folder / "gateway", settings, model) as gateway,
        GatewayClient(*gateway) as client,
    ):
        rollout = GatewayRollout(
            client,
            judge,
            temperature=1.0,
            seed=7,
            own_tasks=own_tasks,
            evidence=evidence,
            width=width,
            engine_ready=engine_ready or nothing,
        )
        checkpoints = Checkpoints(folder / "checkpoints")
        size, tasks_per_step = plan.episodes_per_task, plan.tasks_per_step
        loop = Loop(
            TrainConfig(loss=LOSS, schedule=plan, validation=ValidationSettings(eval_steps=1)),
            source=SyncSource(
                rollout,
                TaskOrder(tasks, seed=7),
                tasks=tasks_per_step,
                size=size,
                replace_equal=plan.replace_equal,
            ),
            backbone=backbone,
            rollouts=RolloutStore(folder / "rollouts"),
            checkpoints=checkpoints,
            position=msgspec.convert(checkpoints.load(backbone) or {}, LoopPosition),
            hooks=LoopHooks(
                report=report,
                publish=partial(publish_nothing, rollout),
                use=rollout.use,
                validate=Validation(rollout, held_out, ValidationSettings()).score if held_out else None,
            ),
        )
        try:
            async with rollout.running(), anyio.create_task_group() as group, AsyncExitStack() as stack:
                if solve is not None:
                    players = WorkflowPlayers(
                        client, solve, judge=judge, sandbox=sandbox, at_once=4, seconds=seconds
                    )
                    await stack.enter_async_context(players.running())
                if clients is not None:
                    group.start_soon(clients, Address(gateway.url, WORKER_TOKEN))
                await loop.run()
                await client.finish()
        except Exception as error:
            # As a training run does.
            raise unwrap_group(error) from error
    return Tuned(backbone, figures)


async def publish_nothing(
    rollout: GatewayRollout, version: int, _probed: ProbeRows | None
) -> dict[str, float]:
    """Publish a version without weights."""
    await rollout.publish(version, nothing)
    return {}


async def ask_text(task: Task, policy: PolicyEndpoint) -> str:
    """Play an episode of one call."""
    return await says(policy, task.question)


async def nothing() -> None:
    """Publish nothing."""


async def says(policy: PolicyEndpoint, text: str) -> str:
    """Ask the policy with the SDK of OpenAI; the model answers `to TEXT`."""
    async with AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
        said = await client.chat.completions.create(
            model=policy.model, messages=[{"role": "user", "content": text}]
        )
    return said.choices[0].message.content or ""
