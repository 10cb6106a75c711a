"""Work on one task: tried again where it failed; sandboxes made before they are needed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.engine import Leaf
from agentflow.errors import ToolFailure
from agentflow.journal import NewSeed, Page, Run, open_journal
from agentflow.rollouts import RolloutConfig
from agentflow.rollouts._result import TaskResult
from agentflow.rollouts._run import Solver, TaskWorker
from agentflow.runs import SandboxPool
from agentflow.sandbox import Sandbox
from agentflow.scoring import ScoreGuard, make_metric
from agentflow.trace import Ending, Episode, Failure, Seed, Solution, Task
from tests._pages import page_over
from tests.mcp_servers._counter import Counter

TASK = Task(index=0, id="q", question="Who?", references=("Ada",))


def episode(answer: str = "", failure: Failure | None = None) -> Episode:
    solution = Solution("", answer) if failure is None else None
    ending = Ending.VERIFIED if failure is None else Ending.FAILED
    return Episode(task=TASK, agent="team", ending=ending, solution=solution, failure=failure)


@asynccontextmanager
async def working(
    folder: Path, solve: Solver, max_retries: int = 2
) -> AsyncGenerator[tuple[TaskWorker, Seed, Run]]:
    """A worker with its one task."""

    async def ignore(result: TaskResult) -> None: ...

    config = RolloutConfig(max_retries=max_retries)
    async with open_journal(f"sqlite:///{folder / 'journal.db'}") as journal:
        run = await journal.open_run("test", {})
        (seed,) = await run.add_seeds(
            [NewSeed("Who?", {"task": msgspec.to_builtins(TASK), "sample": 0}, "q")]
        )
        yield (
            TaskWorker(run, solve, make_metric("exact_match"), config, ignore, ScoreGuard("exact_match")),
            seed,
            run,
        )


@pytest.mark.promise("rollout:retries")
async def test_a_failed_episode_is_retried_and_recorded_tries_are_not_repeated(
    tmp_path: Path,
) -> None:
    tries: list[str] = []

    async def solve(task: Task, page: Page) -> list[Leaf]:
        async def once() -> str:
            tries.append(f"try {len(tries) + 1}")
            return tries[-1]

        said = await page.once("said", str, once)
        if said == "try 1":
            raise ZeroDivisionError("by zero")
        done = episode(failure=Failure("timeout", "late")) if said == "try 2" else episode("Ada")
        return [Leaf(path=(), episode=done, failure=done.failure)]

    async with working(tmp_path, solve) as (worker, seed, _):
        result = msgspec.json.decode(await worker.work(seed), type=TaskResult)
        assert (result.answer, result.score, result.tries) == ("Ada", 1.0, 3)
        again = msgspec.json.decode(await worker.work(seed), type=TaskResult)
    assert again == result
    assert tries == ["try 1", "try 2", "try 3"]


@pytest.mark.promise("rollout:retries")
async def test_a_task_whose_attempts_all_failed_gives_the_reason_and_counts_as_wrong(tmp_path: Path) -> None:
    async def crash(task: Task, page: Page) -> list[Leaf]:
        raise ExceptionGroup("inside", [KeyError("gone")])

    async with working(tmp_path, crash) as (worker, seed, _):
        result = msgspec.json.decode(await worker.work(seed), type=TaskResult)
        given_up = msgspec.json.decode(worker.give_up(seed, OSError("disk")), type=TaskResult)
    assert result.failure == Failure("crashed", "KeyError: 'gone'")
    assert (result.score, result.tries, result.episode) == (0.0, 3, None)
    assert given_up.failure == Failure("crashed", "OSError: disk")
    assert given_up.score == 0.0


@asynccontextmanager
async def nursery(counter: Counter, *, most: int, ahead: int, wanted: int) -> AsyncGenerator[SandboxPool]:
    async with Sandbox(backends=[counter]) as base:
        sandboxes = SandboxPool(base, await base.tools(), most=most, ahead=ahead, wanted=wanted)
        spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=10)
        async with Supervisor([spec]):
            yield sandboxes


async def until(counter: Counter, event: str, count: int) -> None:
    with anyio.fail_after(60):
        while counter.events.count(event) < count:  # noqa: ASYNC110 - there is nobody who would tell
            await anyio.sleep(0.002)


@pytest.mark.promise("rollout:sandboxes")
async def test_sandboxes_are_made_ahead_are_fresh_and_end_with_their_episode() -> None:
    counter = Counter()
    async with nursery(counter, most=4, ahead=2, wanted=3) as sandboxes:
        await until(counter, "initialize", 2)
        for _ in range(3):
            async with sandboxes.fresh() as sandbox:
                assert (await sandbox.execute("counter:add", {})).data["count"] == 1
        assert counter.events.count("initialize") == 3, "no more than were wanted"
        assert counter.events.count("cleanup") == 3
        async with sandboxes.fresh() as sandbox:
            assert (await sandbox.execute("counter:add", {})).data["count"] == 1


@pytest.mark.promise("rollout:sandboxes")
async def test_the_number_of_sandboxes_is_limited_and_unused_ones_are_closed() -> None:
    counter = Counter()
    most = 0

    async with nursery(counter, most=2, ahead=8, wanted=8) as sandboxes, anyio.create_task_group() as tasks:

        async def use() -> None:
            nonlocal most
            async with sandboxes.fresh() as sandbox:
                await sandbox.execute("counter:add", {})
                most = max(most, counter.events.count("initialize") - counter.events.count("cleanup"))

        for _ in range(6):
            tasks.start_soon(use)
    assert most <= 2
    assert counter.events.count("initialize") == counter.events.count("cleanup")


@pytest.mark.promise("rollout:sandboxes")
async def test_the_waiting_task_gets_the_error_of_a_sandbox_that_can_not_be_made() -> None:
    class Broken(Counter):
        async def initialize(self, session: object, settings: object) -> None:
            raise OSError("no room")

    async with nursery(Broken(), most=2, ahead=1, wanted=1) as sandboxes:
        with pytest.raises(ToolFailure, match="no room"):
            async with sandboxes.fresh():
                pass


@pytest.mark.promise("rollout:retries")
async def test_a_section_of_a_page_has_its_own_keys_and_is_stored_with_the_page(tmp_path: Path) -> None:
    kept: dict[str, bytes] = {}
    page = page_over(kept)
    await page.record("a", 1)
    await page.section("s").record("a", 2)
    again = Page(kept)
    assert (again.recall("a", int), again.section("s").recall("a", int), again.section("t").recall("a", int)) == (
        1, 2, None,
    )  # fmt: skip
    assert list(page.keys()) == ["a", "s/a"]
