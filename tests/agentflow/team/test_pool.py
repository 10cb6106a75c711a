"""Pool of workers: started on demand, reused, and replaced when they crash."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from agentflow.actors import Clock, DynamicSupervisor, Supervisor
from agentflow.errors import RunStopped, StopCause
from agentflow.team._pool import RolePool, WorkerCrashed


class Bench:
    """A pool, the jobs that its workers began, and the workers' names."""

    def __init__(self, workers: int) -> None:
        self.pool = RolePool("clerks", workers=workers)
        self.log: list[str] = []
        self.opening = anyio.Event()

    async def ask(self, word: str, *, again: Callable[[], Awaitable[bool]] | None = None) -> str:
        """Have a worker do a job: `crash`, `crash once`, `stop`, `wait`, or echo the word."""

        async def work(clock: Clock) -> str:
            self.log.append(word)
            match word:
                case "stop":
                    raise RunStopped(StopCause.BUDGET, "no money left")
                case "crash":
                    raise ValueError("a bug\nin two lines")
                case "crash once" if self.log.count(word) == 1:
                    raise ValueError("a bug")
                case "wait":
                    await self.opening.wait()
                case _:
                    pass
            return word.upper()

        return await self.pool.ask(work, again=again)


@asynccontextmanager
async def bench(workers: int = 3) -> AsyncGenerator[tuple[Bench, DynamicSupervisor]]:
    """A running pool and its supervisor."""
    made = Bench(workers)
    async with Supervisor([made.pool.spec]) as root:
        yield made, root.child("clerks", DynamicSupervisor)


def started(supervisor: DynamicSupervisor) -> int:
    """Number of workers that the pool has started and not lost."""
    return supervisor.count_children().active


@pytest.mark.promise("team:pool:reuse")
async def test_one_worker_answers_one_request_after_the_other() -> None:
    async with bench() as (pool, supervisor):
        assert [await pool.ask(word) for word in ("a", "b", "c")] == ["A", "B", "C"]
        assert started(supervisor) == 1


@pytest.mark.promise("team:pool:reuse")
async def test_there_are_never_more_workers_than_allowed_and_further_requests_wait() -> None:
    answers: list[str] = []

    async with bench(workers=3) as (pool, supervisor), anyio.create_task_group() as tasks:

        async def ask() -> None:
            answers.append(await pool.ask("wait"))
            assert started(supervisor) == 3

        for _ in range(10):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert len(pool.log) == 3
        pool.opening.set()
    assert answers == ["WAIT"] * 10


@pytest.mark.promise("team:pool:reuse")
async def test_a_waiting_request_takes_the_first_worker_that_becomes_free() -> None:
    answers: list[str] = []

    async with bench(workers=100) as (pool, supervisor):

        async def ask(word: str) -> None:
            answers.append(await pool.ask(word))

        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(ask, f"question {number}")
        assert started(supervisor) < 60
    assert len(answers) == 60


@pytest.mark.promise("team:pool:crash")
@pytest.mark.parametrize("harmless", [True, False])
async def test_a_stopped_worker_is_replaced_if_the_work_may_be_repeated(harmless: bool) -> None:
    answers: list[str] = []

    async def again() -> bool:
        return harmless

    async with bench() as (pool, supervisor), anyio.create_task_group() as tasks:

        async def ask() -> None:
            try:
                answers.append(await pool.ask("wait", again=again))
            except WorkerCrashed:
                answers.append("crashed")

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        await supervisor.terminate_child("clerk-1")
        pool.opening.set()
    assert pool.log == (["wait", "wait"] if harmless else ["wait"])
    assert answers == ["WAIT" if harmless else "crashed"]


@pytest.mark.promise("team:pool:cancel")
async def test_a_cancelled_wait_for_a_worker_does_not_block_the_pool() -> None:
    async with bench(workers=100) as (pool, _):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(pool.ask, "wait")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert [await pool.ask(word) for word in ("a", "b")] == ["A", "B"]


@pytest.mark.promise("team:pool:crash")
async def test_after_a_crash_another_worker_is_asked() -> None:
    async with bench() as (pool, supervisor):
        assert await pool.ask("crash once") == "CRASH ONCE"
        assert await pool.ask("next") == "NEXT"
        assert started(supervisor) == 1
    assert pool.log == ["crash once", "crash once", "next"]


@pytest.mark.promise("team:pool:crash")
async def test_a_second_crash_is_reported_in_one_line_and_the_pool_keeps_working() -> None:
    async with bench() as (pool, _):
        for _ in range(20):
            with pytest.raises(WorkerCrashed, match=r"^clerk-.*ValueError: a bug in two lines\)$"):
                await pool.ask("crash")
        assert await pool.ask("next") == "NEXT"


@pytest.mark.promise("team:pool:crash")
async def test_work_that_must_not_be_repeated_is_not_given_to_another_worker() -> None:
    async def never() -> bool:
        return False

    async with bench() as (pool, _):
        with pytest.raises(WorkerCrashed):
            await pool.ask("crash once", again=never)
    assert pool.log == ["crash once"]


@pytest.mark.promise("team:model-failure")
async def test_the_end_of_a_run_is_raised_and_is_not_a_crash() -> None:
    async with bench() as (pool, supervisor):
        with pytest.raises(RunStopped, match="no money left"):
            await pool.ask("stop")
        assert await pool.ask("next") == "NEXT"
        assert started(supervisor) == 1
    assert pool.log == ["stop", "next"]


@pytest.mark.promise("team:pool:cancel")
async def test_a_cancelled_request_is_aborted_and_its_worker_takes_the_next_one() -> None:
    async with bench(workers=1) as (pool, supervisor):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.ask, "wait")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert await pool.ask("next") == "NEXT"
        assert started(supervisor) == 1
    assert pool.log == ["wait", "next"]


@pytest.mark.promise("team:pool:ended")
async def test_asking_a_pool_that_has_ended_ends_the_run() -> None:
    async with bench() as (pool, _):
        await pool.ask("a")
    with pytest.raises(RunStopped) as stopped:
        await pool.ask("b")
    assert stopped.value.cause is StopCause.INTERRUPTED


@pytest.mark.promise("team:pool:ended")
async def test_a_request_in_progress_when_the_pool_ends_ends_the_run() -> None:
    stopped: list[StopCause] = []

    async with anyio.create_task_group() as tasks, bench() as (pool, _):

        async def ask() -> None:
            try:
                await pool.ask("wait")
            except RunStopped as stop:
                stopped.append(stop.cause)

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
    assert stopped == [StopCause.INTERRUPTED]
