"""Workers that are killed or crash during an episode."""

from typing import TypeVar

import anyio
import pytest

from agentflow.actors import DynamicSupervisor, Supervisor
from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.models import Call, Completion
from agentflow.team import Team, TeamAgent
from agentflow.trace import Episode
from tests.agentflow.team._model import FunctionModel
from tests.agentflow.team._solving import TASK, Book, Script, diary_sandbox

T = TypeVar("T")


class Fatal(FunctionModel):
    """In its n-th call for a role it does not answer: it waits until it is killed, or crashes."""

    def __init__(self, role: str, number: int, *, crash: bool = False) -> None:
        super().__init__(Script(turns=3))
        self.called = anyio.Event()
        self._role = role
        self._left = number
        self._crash = crash

    async def complete(self, call: Call[T]) -> Completion[T]:
        self._left -= call.role == self._role
        if not self._left and not self.called.is_set():
            self.called.set()
            if self._crash:
                raise ZeroDivisionError("a bug")
            await anyio.sleep_forever()
        return await super().complete(call)


async def episode_with(model: FunctionModel, pool: str = "") -> Episode:
    """An episode; once the model is called for the last time before it waits, the pool's only worker is killed."""
    members = Team({"planner": model, "generator": model})

    found: dict[str, Episode] = {}

    async def kill() -> None:
        assert isinstance(model, Fatal)
        await model.called.wait()
        supervisor = house.child(pool, DynamicSupervisor)
        await supervisor.terminate_child(f"{pool.removesuffix('s')}-1")

    async with (
        diary_sandbox() as sandbox,
        Supervisor(members.specs(), name="team") as house,
        anyio.create_task_group() as tasks,
    ):
        if pool:
            tasks.start_soon(kill)
        tools = await sandbox.tools("diary_write")
        engine = EpisodeEngine(agent=TeamAgent(members), tools=tools, settings=EpisodeSettings())
        found["episode"] = await engine.solve(TASK, sandbox, Book().open())
    return found["episode"]


def told(episode: Episode) -> tuple[object, ...]:
    turns = [(turn.step, turn.action, turn.result, turn.decision) for turn in episode.turns]
    return episode.ending, episode.analysis, turns, episode.solution, episode.calls


ROLES = [
    ("planners", "analyst"),
    ("planners", "planner"),
    ("executors", "executor"),
    ("verifiers", "verifier"),
]


@pytest.mark.promise("team:solve:killed")
@pytest.mark.parametrize(("pool", "role"), [*ROLES, ("generators", "generator")])
async def test_a_worker_killed_during_an_episode_is_replaced_and_the_episode_ends_the_same(
    pool: str, role: str
) -> None:
    model = Fatal(role, 1 if role in ("analyst", "generator") else 2)
    usual = await episode_with(FunctionModel(Script(turns=3)))
    with anyio.fail_after(60):
        assert told(await episode_with(model, pool)) == told(usual)
    assert model.called.is_set()


@pytest.mark.promise("team:solve:killed")
@pytest.mark.parametrize("role", ["analyst", "planner", "executor", "verifier", "generator"])
async def test_a_worker_that_crashes_during_an_episode_is_replaced_and_the_episode_ends_the_same(
    role: str,
) -> None:
    model = Fatal(role, 1, crash=True)
    usual = await episode_with(FunctionModel(Script(turns=3)))
    assert told(await episode_with(model)) == told(usual)
    assert model.called.is_set()
