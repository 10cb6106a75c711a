"""Workers come and go; whoever asks gets an answer, or is told why there is none."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from agentflow.actors import DynamicSupervisor, Supervisor
from agentflow.errors import RunStopped, StopCause
from agentflow.team._pool import Pool, Worker


class Clerk(Worker[str, str]):
    """Echoes, in its own way: `crash`, `stop`, `wait`."""

    def __init__(self, office: "Office") -> None:
        super().__init__()
        self.office = office
        self.number = len(office.clerks)
        office.clerks.append(self)

    async def work(self, about: str) -> str:
        self.office.log.append(f"{self.number}: {about}")
        match about:
            case "stop":
                raise RunStopped(StopCause.BUDGET, "no money left")
            case "crash":
                raise ValueError("a bug\nin two lines")
            case "crash once" if self.number == 0:
                raise ValueError("a bug")
            case "wait":
                await self.office.opening.wait()
            case _:
                pass
        return about.upper()


class Clerks(Pool[str, str]):
    """All clerks."""

    def fallen(self, why: str) -> str:
        return f"fallen: {why}"


class Office:
    """The clerks that were made, and what they did."""

    def __init__(self) -> None:
        self.clerks: list[Clerk] = []
        self.log: list[str] = []
        self.opening = anyio.Event()


@asynccontextmanager
async def clerks(office: Office, workers: int = 3) -> AsyncGenerator[Clerks]:
    pool = Clerks("clerks", lambda: Clerk(office), workers=workers)
    async with Supervisor([pool.spec]):
        yield pool


@pytest.mark.promise("team:pool:reuse")
async def test_one_worker_answers_one_question_after_the_other() -> None:
    office = Office()
    async with clerks(office) as pool:
        assert [await pool.ask(word) for word in ("a", "b", "c")] == ["A", "B", "C"]
    assert len(office.clerks) == 1


@pytest.mark.promise("team:pool:reuse")
async def test_there_are_never_more_workers_than_allowed_and_further_questions_wait() -> None:
    office = Office()
    answers: list[str] = []

    async def ask() -> None:
        answers.append(await pool.ask("wait"))

    async with clerks(office, workers=3) as pool, anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert len(office.log) == 3
        office.opening.set()
    assert answers == ["WAIT"] * 10
    assert len(office.clerks) == 3


@pytest.mark.promise("team:pool:reuse")
async def test_who_waits_for_a_worker_takes_the_first_that_comes_free() -> None:
    office = Office()
    answers: list[str] = []

    async def ask(word: str) -> None:
        answers.append(await pool.ask(word))

    async with clerks(office, workers=100) as pool, anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(ask, f"question {number}")
    assert len(answers) == 60
    assert len(office.clerks) < 60


@pytest.mark.promise("team:pool:crash")
@pytest.mark.parametrize("harmless", [True, False])
async def test_a_worker_that_is_stopped_is_replaced_where_that_does_no_harm(harmless: bool) -> None:
    office = Office()
    answers: list[str] = []

    async def again() -> bool:
        return harmless

    async def ask() -> None:
        answers.append(await pool.ask("wait", again=again))

    pool = Clerks("clerks", lambda: Clerk(office), workers=3)
    async with Supervisor([pool.spec]) as house, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        await house.child("clerks", DynamicSupervisor).terminate_child("clerk-1")
        office.opening.set()
    assert office.log == (["0: wait", "1: wait"] if harmless else ["0: wait"])
    assert answers[0].startswith("WAIT" if harmless else "fallen: ")


@pytest.mark.promise("team:pool:cancel")
async def test_who_gives_up_while_waiting_for_a_worker_is_in_nobodys_way() -> None:
    office = Office()
    async with clerks(office, workers=100) as pool:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(pool.ask, "wait")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert [await pool.ask(word) for word in ("a", "b")] == ["A", "B"]


@pytest.mark.promise("team:pool:crash")
async def test_after_a_crash_another_worker_is_asked() -> None:
    office = Office()
    async with clerks(office) as pool:
        assert await pool.ask("crash once") == "CRASH ONCE"
        assert await pool.ask("next") == "NEXT"
    assert office.log == ["0: crash once", "1: crash once", "1: next"]


@pytest.mark.promise("team:pool:crash")
async def test_a_second_crash_is_an_answer_in_one_line_and_the_pool_lives_on() -> None:
    office = Office()
    async with clerks(office) as pool:
        for _ in range(20):
            answer = await pool.ask("crash")
            assert answer.startswith("fallen: clerk-")
            assert answer.endswith("ValueError: a bug in two lines)")
        assert await pool.ask("next") == "NEXT"


@pytest.mark.promise("team:pool:crash")
async def test_nobody_else_is_asked_where_that_could_do_harm() -> None:
    office = Office()

    async def never() -> bool:
        return False

    async with clerks(office) as pool:
        assert (await pool.ask("crash once", again=never)).startswith("fallen")
    assert office.log == ["0: crash once"]


@pytest.mark.promise("team:model-failure")
async def test_the_end_of_a_run_passes_through_and_is_no_crash() -> None:
    office = Office()
    async with clerks(office) as pool:
        with pytest.raises(RunStopped, match="no money left"):
            await pool.ask("stop")
        assert await pool.ask("next") == "NEXT"
    assert len(office.clerks) == 1


@pytest.mark.promise("team:pool:cancel")
async def test_a_question_that_was_given_up_is_stopped_and_its_worker_goes_on() -> None:
    office = Office()
    async with clerks(office, workers=1) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.ask, "wait")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert await pool.ask("next") == "NEXT"
    assert office.log == ["0: wait", "0: next"]


@pytest.mark.promise("team:pool:ended")
async def test_asking_a_pool_that_has_ended_ends_the_run() -> None:
    office = Office()
    async with clerks(office) as pool:
        await pool.ask("a")
    with pytest.raises(RunStopped) as stopped:
        await pool.ask("b")
    assert stopped.value.cause is StopCause.INTERRUPTED


@pytest.mark.promise("team:pool:ended")
async def test_a_question_that_is_open_when_the_pool_ends_ends_the_run() -> None:
    office = Office()
    stopped: list[StopCause] = []

    async def ask() -> None:
        try:
            await pool.ask("wait")
        except RunStopped as stop:
            stopped.append(stop.cause)

    async with anyio.create_task_group() as tasks, clerks(office) as pool:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
    assert stopped == [StopCause.INTERRUPTED]
