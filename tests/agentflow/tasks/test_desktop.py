"""Tasks on a desktop: files and windows, read outside the screen."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

import anyio
import pytest

from agentflow.engine import BranchSandboxes, Grower, GrowthSettings
from agentflow.journal import Page
from agentflow.offline._engine import plan
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.tasks import (
    DesktopState,
    StateTasks,
    StateTaskSettings,
    TaskAttempt,
    TaskSetup,
    VerifiableTask,
    check_task,
)
from agentflow.trace import Action, Node, Plan, PlanRequest, Proposal, Reply, Seed, ToolCard
from tests.agentflow.tasks._trees import OfflineRoles
from tests.agentflow.trace._steps import seen_step

SETTINGS = SandboxSettings(backends={"vm": {"desktop": {"panel": True}}, "bash": {}})
TOOLS = ["bash_run", "vm_click", "vm_type", "vm_wait"]
STILL = Action("vm_wait", {"seconds": 30, "until_still": True})
SETUP = Action("bash_run", {"command": "echo Bread > old.txt; echo ready"})
CLICK = Action("vm_click", {"x": 43, "y": 15})
TYPE = Action("vm_type", {"text": "echo Milk > list.txt; rm old.txt; exit\n"})
PATIENCE = Action("vm_wait", {"seconds": 5})
SOLUTION = (CLICK, PATIENCE, TYPE, PATIENCE)


@pytest.fixture(scope="module")
async def base(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Sandbox]:
    async with Sandbox(SETTINGS) as sandbox:
        yield sandbox


class ScriptedRoles(OfflineRoles):
    """Roles whose planner repeats a script."""

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = actions

    async def plan(self, request: PlanRequest) -> Reply[Any]:
        """Propose the next action of the script."""
        action = self._actions[len(request.path)]
        return Reply(value=Plan((Proposal("Make the list.", action.tool, action.arguments),)))


def kind_of(base: Sandbox, pool: BranchSandboxes, roles: OfflineRoles) -> StateTasks:
    return StateTasks(
        DesktopState(),
        executor=roles,
        sandboxes=pool,
        author=roles,
        settings=StateTaskSettings(max_tasks=1, min_steps=2),
    )


@pytest.mark.promise("tasks:desktop:conditions")
@pytest.mark.parametrize(
    ("before", "after", "conditions"),
    [
        ({}, {"window Editor": {"open": "yes"}}, ["the window `Editor` is open"]),
        ({"window Editor": {"open": "yes"}}, {}, ["the window `Editor` is closed"]),
        (
            {},
            {
                "window Editor": {"open": "yes"},
                "a": {"kind": "file", "mode": "644", "sha256": "1", "text": "x"},
            },
            ["`a` has exactly this content: x"],
        ),
    ],
)
def test_conditions_are_about_files_or_windows(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]], conditions: list[str]
) -> None:
    reader = DesktopState()
    found = reader.differences(before, after)
    assert [reader.says(each) for each in found] == conditions
    assert all(each.holds(after) and not each.holds(before) for each in found)


@pytest.mark.promise("tasks:desktop:session")
async def test_an_attempt_on_a_desktop_is_verified_in_its_session(base: Sandbox) -> None:
    reader, roles = DesktopState(), OfflineRoles()
    kind = kind_of(base, BranchSandboxes(base, await base.tools(TOOLS)), roles)
    async with await base.fork() as session:
        await session.execute(SETUP.tool, SETUP.arguments)
        before = await reader.read(session)
        await session.execute(CLICK.tool, CLICK.arguments)
        with anyio.fail_after(60):
            while (now := await reader.read(session)) == before:
                await session.execute(STILL.tool, STILL.arguments)
        opened = reader.differences(before, now)
        assert [reader.says(each) for each in opened] == ["the window `xterm` is open"]
        # Its shell reads what is typed before its prompt, too.
        await session.execute(STILL.tool, STILL.arguments)
        task = VerifiableTask(
            id="task_1",
            kind="gui",
            instruction="Replace old.txt by list.txt with the word Milk.",
            setup=TaskSetup(actions=(SETUP,)),
            gold=TaskAttempt(name="gold", actions=SOLUTION),
            verifier=tuple(
                each.predicate(reader.says(each), reader.probe(each))
                for each in reader.differences(
                    before, {"list.txt": {"kind": "file", "mode": "644", "sha256": "1", "text": "Milk"}}
                )
                if not each.thing.startswith("window ")
            ),
            wrong=(),
            tree_id="tree_1",
            source_id="seed_001",
        )
        assert {each.expected["thing"] for each in task.verifier} == {"list.txt", "old.txt"}
        attempt = TaskAttempt(name="agent")
        assert not (await kind.verify(task, attempt, session)).passed
        await session.execute(TYPE.tool, TYPE.arguments)
        with anyio.fail_after(60):
            while not (await kind.verify(task, attempt, session)).passed:
                await session.execute(STILL.tool, STILL.arguments)


@pytest.mark.promise("offline:desktop")
async def test_without_a_model_a_terminal_is_started_and_jobs_on_the_files_of_the_seed_are_typed(
    base: Sandbox,
) -> None:
    tools = tuple(
        ToolCard(name, "", {}) for name in ("bash_run", "vm_right_click", "vm_key", "vm_wait", "vm_type")
    )
    path: tuple[Node, ...] = ()
    async with await base.fork() as session:
        while not path or path[-1].call.tool != "vm_type":
            request = PlanRequest(seed="Reports", tools=tools, path=path, count=1, kwargs=SETUP.arguments)
            (proposal,) = plan(request).proposals
            fixed = SETUP.arguments if proposal.tool == SETUP.tool else {}
            action = Action(proposal.tool, {**proposal.arguments, **fixed})
            result = await session.execute(action.tool, action.arguments)
            assert result.error is None
            path = (*path, seen_step(proposal.intent, action, ""))
        with anyio.fail_after(60):
            while not any(thing.startswith("results/") for thing in await DesktopState().read(session)):
                await session.execute(STILL.tool, STILL.arguments)


@pytest.mark.soak
@pytest.mark.promise("tasks:desktop:verified")
async def test_only_the_solution_of_a_desktop_task_passes(base: Sandbox) -> None:
    script = (SETUP, *SOLUTION)
    roles = ScriptedRoles(script)
    pool = BranchSandboxes(base, await base.tools(TOOLS))
    growth = GrowthSettings(max_depth=len(script), branching_factor=1, depth_threshold=1)
    grower = Grower(growth, run="tests", planner=roles, executor=roles, verifier=roles, sandboxes=pool)
    page = Page()
    tree = await grower.grow(Seed(index=0, id="seed_001", content="Write a list"), page)
    kind = kind_of(base, pool, roles)
    derived = await kind.derive(tree, page)
    [task] = derived.tasks
    assert not any(action.tool == "bash_run" for action in task.gold.actions)
    check = await check_task(task, kind, page)
    assert check.accepted, check
