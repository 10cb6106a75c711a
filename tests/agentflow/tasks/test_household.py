"""Tasks in a household."""

from collections.abc import AsyncGenerator, Sequence
from itertools import count
from typing import Literal

import pytest

from agentflow.engine import BranchSandboxes, GrowthSettings
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.tasks import HouseholdState, State, StateCondition, check_task
from agentflow.tasks._survey import survey
from tests.agentflow.tasks._trees import Workshop, workshop

TOOLS = ["world_reset", "world_observe", "world_act"]
GROWTH = GrowthSettings(max_depth=12, branching_factor=2, depth_threshold=3)


@pytest.fixture(scope="module")
async def shop(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Workshop]:
    settings = SandboxSettings(backends={"world": {"evaluate": True}})
    async with workshop(HouseholdState(), settings, TOOLS, GROWTH, most=1) as found:
        yield found


async def check_tasks(shop: Workshop, wanted: int) -> None:
    """Derive one task per seed; each must tell its solution from everything else."""
    instructions: set[str] = set()
    for number in count():
        page = Page()
        for task in await shop.tasks(number, page, seed=number):
            check = await check_task(task, shop.kind, page)
            assert check.accepted, (task, check)
            verdicts = {trial.attempt: [one.passed for one in trial.verdicts] for trial in check.trials}
            assert verdicts.pop("gold") == [True, True]
            assert set(map(tuple, verdicts.values())) == {(False, False)}
            assert any(name.startswith("sibling/") for name in verdicts)
            instructions.add(task.instruction)
        if len(instructions) >= wanted:
            return


@pytest.mark.promise("tasks:household:verified")
async def test_only_the_solution_of_a_household_task_passes(shop: Workshop) -> None:
    await check_tasks(shop, 6)


@pytest.mark.soak
@pytest.mark.promise("tasks:household:verified")
async def test_only_the_solutions_of_forty_household_tasks_pass(shop: Workshop) -> None:
    await check_tasks(shop, 40)


@pytest.mark.promise("tasks:household:hidden")
async def test_the_whole_state_is_read_outside_the_agent_s_tools(shop: Workshop) -> None:
    task = (await shop.tasks(3, seed=3))[0]
    assert "world_inspect" not in task.setup.tools
    assert all(each.probe[0].tool == "world_inspect" for each in task.verifier)
    assert not any(action.tool == "world_inspect" for action in (*task.setup.actions, *task.gold.actions))


@pytest.mark.promise("tasks:state:resume")
async def test_a_run_killed_after_any_entry_derives_the_same_tasks(shop: Workshop) -> None:
    tree = await shop.grow(5, seed=5)
    entries: dict[str, bytes] = {}

    async def write(key: str, body: bytes) -> None:
        entries[key] = body

    async def derive(page: Page) -> list[object]:
        derived = await shop.kind.derive(tree, page)
        return [derived, *[await check_task(task, shop.kind, page) for task in derived.tasks]]

    whole = await derive(Page({}, write))
    assert any(key.startswith("instruct/") for key in entries)
    for kept in range(0, len(entries) + 1, 3):
        rest = dict(list(entries.items())[:kept])
        written = shop.roles.instructions
        assert await derive(Page(rest)) == whole
        repeated = shop.roles.instructions - written
        assert repeated == sum(key.startswith("instruct/") for key in entries.keys() - rest.keys())


class BrokenReader(HouseholdState):
    """Reader that fails for every other state."""

    reads = 0

    async def read(self, sandbox: Sandbox, conditions: Sequence[StateCondition] = ()) -> State:
        """Fail, or read."""
        self.reads += 1
        if self.reads > 2 and self.reads % 2:
            raise ToolFailure(ErrorKind.OUT_OF_MEMORY, "the memory limit was reached")
        return await super().read(sandbox, conditions)


@pytest.mark.promise("tasks:state:unreadable")
async def test_a_state_that_cannot_be_read_costs_its_branch_alone(shop: Workshop) -> None:
    tree = await shop.grow(4, seed=4)
    states = await survey(
        tree, BrokenReader(), shop.roles, BranchSandboxes(shop.base, await shop.base.tools(TOOLS))
    )
    assert 2 < len(states) < len(tree.nodes)
    for node in tree.nodes:
        if node.id in states and node.parent is not None:
            assert node.parent in states
