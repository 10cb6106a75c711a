"""The seed scheduler: seeds that crash, seeds taken over by another process, leases."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause, WorkPostponed
from agentflow.journal import NewSeed, Run, RunCommands, open_journal, this_process
from agentflow.runs import PauseGate, RunProgress
from agentflow.runs._seed_scheduler import RunShutdown, SeedScheduler
from agentflow.telemetry import RunTrace
from agentflow.trace import Seed


class Work:
    """Work on seeds that records its calls."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.shutdown = RunShutdown()
        self.tries: Counter[str] = Counter()
        self.errors: dict[str, list[Exception]] = {}
        self.books = 0
        self.applied: list[RunCommands] = []
        self.most = 0
        self.at_work = 0

    async def work(self, seed: Seed) -> bytes:
        self.tries[seed.content] += 1
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await anyio.lowlevel.checkpoint()
            if errors := self.errors.get(seed.content):
                raise errors.pop(0)
            return b"grown " + seed.content.encode()
        finally:
            self.at_work -= 1

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        return f"gave up {seed.content}: {error}".encode()

    async def save_usage(self) -> None:
        self.books += 1

    async def done(self) -> list[str]:
        return [harvest.decode() async for _, harvest in self.run.stored_results()]

    async def until_ended(self, *, at_once: int = 8) -> None:
        scheduler = SeedScheduler(
            trace=RunTrace("synthesis", "key"),
            agent="team",
            journal=self.run,
            worker=self,
            concurrency=at_once,
            gate=PauseGate(),
            shutdown=self.shutdown,
            progress=RunProgress(),
            grace_seconds=1,
            save_usage=self.save_usage,
            apply_commands=self.applied.append,
        )
        spec = ChildSpec(id="scheduler", start=lambda: scheduler, restart=Restart.TEMPORARY)
        async with Supervisor([spec]):
            with anyio.fail_after(60):
                await self.shutdown.finished.wait()


@asynccontextmanager
async def work(folder: Path, *seeds: str) -> AsyncGenerator[Work]:
    async with open_journal(f"sqlite:///{folder / 'journal.db'}") as journal:
        run = await journal.open_run("test", {})
        await run.add_seeds([NewSeed(seed) for seed in seeds])
        yield Work(run)


@pytest.mark.promise("supervisor:at-once")
async def test_the_number_of_concurrent_trees_is_limited(tmp_path: Path) -> None:
    async with work(tmp_path, *"abcdefgh") as work_:
        await work_.until_ended(at_once=3)
        assert work_.most == 3
        assert work_.applied[0] == RunCommands(paused=False, stopped=False)
        assert await work_.done() == [f"grown {seed}" for seed in "abcdefgh"]


@pytest.mark.promise("supervisor:seed-crash")
async def test_a_crashing_seed_is_retried_and_then_abandoned_without_affecting_others(
    tmp_path: Path,
) -> None:
    async with work(tmp_path, *"abc") as work_:
        work_.errors = {
            "a": [ZeroDivisionError("once")],
            "b": [KeyError("x"), ExceptionGroup("y", [OSError("twice")])],
        }
        await work_.until_ended()
        assert work_.tries == {"a": 2, "b": 2, "c": 1}
        assert await work_.done() == ["grown a", "gave up b: twice", "grown c"]
        assert work_.shutdown.reason is None


@pytest.mark.promise("supervisor:leases")
@pytest.mark.parametrize("error", [RunStopped(StopCause.MODEL, "gone"), ConfigurationError("strategy: no")])
async def test_an_early_end_releases_the_seeds(tmp_path: Path, error: Exception) -> None:
    async with work(tmp_path, *"abc") as work_:
        work_.errors = {"b": [error]}
        await work_.until_ended(at_once=1)
        assert work_.shutdown.reason is error
        assert await work_.done() == ["grown a"]
        assert (await work_.run.counts()) == (2, 0, 1)
        assert work_.books > 0


@pytest.mark.promise("supervisor:leases")
async def test_a_seed_taken_over_by_another_process_is_left_alone(tmp_path: Path) -> None:
    async with work(tmp_path, "a", "b") as work_:
        grow = work_.work

        async def lose(seed: Seed) -> bytes:
            if seed.content == "a" and not work_.tries["a"]:
                await work_.run.release(this_process())
                async with open_journal(f"sqlite:///{tmp_path / 'journal.db'}") as other:
                    theirs = await other.open_run("test", {})
                    [taken, *_] = await theirs.claim("somebody else", 1)
                    await theirs.finish(taken, b"theirs")
            return await grow(seed)

        work_.work = lose
        await work_.until_ended(at_once=1)
        assert work_.shutdown.reason is None
        assert await work_.done() == ["theirs", "grown b"]


@pytest.mark.promise("supervisor:outage")
async def test_a_postponed_seed_is_left_for_other_processes_and_the_others_are_finished(
    tmp_path: Path,
) -> None:
    later = WorkPostponed(StopCause.MODEL, "HTTP 500")
    async with work(tmp_path, *"abc") as work_:
        work_.errors = {"a": [later], "c": [ExceptionGroup("inside", [later])]}
        await work_.until_ended(at_once=1)
        assert work_.tries == {"a": 1, "b": 1, "c": 1}
        assert (work_.shutdown.reason, work_.shutdown.postponed) == (None, later)
        assert await work_.done() == ["grown b"]
        assert (await work_.run.counts(), await work_.run.postponed()) == ((2, 0, 1), 2)
        async with open_journal(f"sqlite:///{tmp_path / 'journal.db'}") as other:
            theirs = await other.open_run("test", {})
            [taken] = await theirs.claim("somebody else", 1)
            assert taken.content == "a"
            await theirs.finish(taken, b"theirs")
        assert await work_.run.postponed() == 1


@pytest.mark.promise("supervisor:outage")
async def test_postponed_seeds_are_tried_again_once_another_one_was_finished(tmp_path: Path) -> None:
    later = WorkPostponed(StopCause.MODEL, "HTTP 500")
    async with work(tmp_path, *"abc") as work_:
        work_.errors = {"a": [later, later], "b": [later]}
        await work_.until_ended(at_once=1)
        assert work_.tries == {"a": 3, "b": 2, "c": 1}
        assert (work_.shutdown.reason, work_.shutdown.postponed) == (None, None)
        assert await work_.done() == ["grown a", "grown b", "grown c"]
