"""A fork is exact: parent and fork continue as if no fork had happened."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimes import Instance
from runtimes.process import ProcessRuntime
from tests.runtimes.process.fork_statements import (
    PROLOGUE,
    SEEN_BY_BASH,
    SEEN_BY_PYTHON,
    Statement,
    observed,
    statements,
)


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(idle=False) as runtime:
        yield runtime


@dataclass(frozen=True, slots=True)
class Step:
    """One branch runs a statement, or (without one) forks."""

    branch: int
    statement: Statement | None


@dataclass(slots=True)
class Branch:
    """Live instance and all statements that led to its state, including those before its forks."""

    instance: Instance
    history: list[Statement] = field(default_factory=list[Statement])
    seen: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])

    async def run(self, statement: Statement) -> None:
        self.history.append(statement)
        self.seen.append(observed(await self.instance.run(statement.language, statement.source)))

    async def fork(self) -> "Branch":
        fork = await self.instance.fork()
        assert fork.left_behind == ()
        return Branch(fork.instance, list(self.history), list(self.seen))


STEPS = st.lists(
    st.builds(Step, st.integers(0, 3), statements() | statements() | statements() | statements() | st.none()),
    min_size=6,
    max_size=40,
)
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
END = (Statement("bash", SEEN_BY_BASH), Statement("python", SEEN_BY_PYTHON), Statement("bash", SEEN_BY_BASH))


async def compare_with_replay(runtime: ProcessRuntime, steps: list[Step]) -> None:
    branches = [Branch(await runtime.start())]
    await branches[0].run(PROLOGUE)
    for step in steps:
        branch = branches[step.branch % len(branches)]
        if step.statement is not None:
            await branch.run(step.statement)
        elif len(branches) < 4:
            branches.append(await branch.fork())
    for branch in branches:
        for statement in END:
            await branch.run(statement)
        await branch.instance.stop()
    for branch in branches:
        replay = Branch(await runtime.start())
        for statement, seen in zip(branch.history, branch.seen, strict=True):
            await replay.run(statement)
            assert replay.seen[-1] == seen, statement
        await replay.instance.stop()


@pytest.mark.timeout(600)
@pytest.mark.promise("fork:exact")
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(steps=STEPS)
async def test_forks_and_parent_continue_like_a_replay_from_the_start(
    runtime: ProcessRuntime, steps: list[Step]
) -> None:
    with anyio.fail_after(300):
        await compare_with_replay(runtime, steps)


@pytest.mark.soak
@pytest.mark.promise("fork:exact")
@settings(max_examples=3000, deadline=None, suppress_health_check=SLOW)
@given(steps=STEPS)
async def test_thousands_of_forks_continue_like_replays(runtime: ProcessRuntime, steps: list[Step]) -> None:
    await compare_with_replay(runtime, steps)
