"""The real training loop on a gateway of another process, with a backbone that only counts: a program that tests kill.

`python -m tests.agentflow.gateway._tuning_program JSON` prints a line after each event.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from agentflow.gateway import GatewayClient
from agentflow.learner import Row, TaskOrder, TrainConfig
from agentflow.learner._checkpoints import Checkpoints, RolloutStore
from agentflow.learner._config import Schedule
from agentflow.learner._loop import Loop, LoopHooks, LoopPosition
from agentflow.learner._sources import SyncSource
from agentflow.learner.losses import LossSettings
from agentflow.tuner import GatewayRollout
from agentflow.tuner.judges import make_judge
from tests.agentflow.tuner._tuning import LOSS, CountingBackbone, publish_nothing, some_tasks


class Tuner(Struct, frozen=True):
    """A training with a gateway that runs already."""

    url: str
    token: str
    folder: str
    steps: int
    tasks_per_step: int
    size: int


class _Backbone(CountingBackbone):
    """A backbone that reports its steps."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        super().__init__()
        self._emit = emit

    def step(self, rows: Sequence[Row], loss: LossSettings) -> dict[str, float]:
        """Count."""
        self._emit("learning")
        figures = super().step(rows, loss)
        self._emit("learned")
        return figures


async def tune(tuner: Tuner, emit: Callable[[str], None]) -> None:
    """Make all steps. A killed training continues from its checkpoint and its stored batches."""
    folder = Path(tuner.folder)
    plan = Schedule(
        steps=tuner.steps,
        epochs=None,
        tasks_per_step=tuner.tasks_per_step,
        episodes_per_task=tuner.size,
        save_steps=2,
    )
    backbone, checkpoints = _Backbone(emit), Checkpoints(folder / "checkpoints")
    async with GatewayClient(tuner.url, tuner.token) as client:
        emit("started")
        rollout = GatewayRollout(
            client,
            make_judge("exact_match"),
            temperature=1.0,
            seed=7,
            on_result=lambda _: emit("result"),
        )
        loop = Loop(
            TrainConfig(loss=LOSS, schedule=plan),
            source=SyncSource(
                rollout,
                TaskOrder(some_tasks(8), seed=7),
                tasks=tuner.tasks_per_step,
                size=tuner.size,
                replace_equal=0.0,
            ),
            backbone=backbone,
            rollouts=RolloutStore(folder / "rollouts"),
            checkpoints=checkpoints,
            position=msgspec.convert(checkpoints.load(backbone) or {}, LoopPosition),
            hooks=LoopHooks(
                report=lambda step, _: emit(f"step {step}"),
                publish=partial(publish_nothing, rollout),
                use=rollout.use,
            ),
        )
        async with rollout.running():
            await loop.run()
        await client.finish()


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(tune, msgspec.convert(json.loads(sys.argv[1]), Tuner), _print)
