"""Seed scheduler: claims seeds, runs the work of each, and renews their leases; the gate in front of its effects."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

import anyio

from agentflow.actors import Context
from agentflow.errors import (
    AgentFlowError,
    ConfigurationError,
    RunStopped,
    StopCause,
    WorkPostponed,
    unwrap_group,
)
from agentflow.journal import Counts, Run, RunCommands, SeedTaken, this_process
from agentflow.runs._progress import Phase, RunProgress
from agentflow.telemetry import RunTrace, get_logger
from agentflow.trace import Seed

P = ParamSpec("P")
T = TypeVar("T")


class PauseGate:
    """Delay effects while closed. Effects in flight are never interrupted."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Number of effects that have begun and not ended."""
        self._opened: anyio.Event | None = None
        self._idle: anyio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """New effects wait."""
        return self._opened is not None

    def close(self) -> None:
        """Make new effects wait."""
        self._opened = self._opened or anyio.Event()

    def open(self) -> None:
        """Let waiting effects begin."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def wait_idle(self) -> None:
        """Wait until no effect is in flight."""
        while self.in_flight:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    async def run(self, effect: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """Wait until the gate is open, then run the effect."""
        while self._opened is not None:
            await self._opened.wait()
        self.in_flight += 1
        try:
            return await effect(*arguments, **named)
        finally:
            self.in_flight -= 1
            if not self.in_flight and self._idle is not None:
                self._idle.set()
                self._idle = None


logger = get_logger(__name__)

LEASE_SECONDS = 30.0
"""Time after which another machine takes over the seeds of one that died."""
GRACE_SECONDS = 10.0
"""Time that effects in flight get when the run is stopped."""
POLL_SECONDS = 1.0
"""Interval at which the journal is checked for commands, and for seeds that other processes released or added."""
TRIES = 2
"""Attempts per seed: work that crashed is repeated once; recorded effects are not."""


MAX_POSTPONED = 1_000
"""Number of seeds that a process postpones before it ends the run."""


class SeedWorker(Protocol):
    """The work of a run for one seed."""

    async def work(self, seed: Seed) -> bytes:
        """Do everything for a seed and return its result."""
        ...

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        """Return the result of a seed whose work crashed repeatedly."""
        ...


class RunShutdown:
    """State of the end of a run; it outlives a scheduler that crashed."""

    def __init__(self) -> None:
        self.reason: RunStopped | ConfigurationError | None = None
        """Reason of an early end; `None`: the run was not stopped."""
        self.no_more_claims = False
        """No further seed is claimed."""
        self.requested = anyio.Event()
        """The run is to end early."""
        self.immediate = anyio.Event()
        """Effects in flight are not waited for."""
        self.finished = anyio.Event()
        """The scheduler has ended."""
        self.postponed: WorkPostponed | None = None
        """Reason of the last seed that was postponed."""
        self._postponed = 0

    def request(self, reason: RunStopped | ConfigurationError) -> None:
        """End the run early; the first reason is kept."""
        if self.reason is None:
            self.reason = reason
            self.requested.set()
        if isinstance(reason, RunStopped) and reason.cause is StopCause.JOURNAL:
            # Results of effects in flight could not be recorded.
            self.immediate.set()

    def postpone(self, reason: WorkPostponed) -> None:
        """Note a seed that can't be finished now; too many of them end the run."""
        self.postponed = reason
        self._postponed += 1
        if self._postponed >= MAX_POSTPONED:
            self.request(RunStopped(reason.cause, f"{reason.message}; run the same command to resume"))


@dataclass(kw_only=True)
class SeedScheduler:
    """Child of the run's supervisor that works through the seeds of the journal."""

    journal: Run
    """Run whose seeds it claims."""
    worker: SeedWorker
    """The work of the run for a seed; it gives up after `TRIES` crashes."""
    concurrency: int
    """Maximum number of seeds in work."""
    gate: PauseGate
    """Gate in front of every effect of the run."""
    shutdown: RunShutdown
    """State of the end of the run."""
    trace: RunTrace
    """Trace of the run."""
    agent: str
    """Name of what works on a seed, for its trace."""
    progress: RunProgress
    """Counters of the run."""
    grace_seconds: float
    """Time that effects in flight get when the run is stopped."""
    save_usage: Callable[[], Awaitable[None]]
    """Called with each renewal of the leases."""
    apply_commands: Callable[[RunCommands], None]
    """Applies the commands of the journal."""
    _owner: str = field(default_factory=this_process, init=False)
    """Holder of its leases."""
    _changed: anyio.Event = field(default_factory=anyio.Event, init=False)
    _recovered: bool = field(default=False, init=False)
    """A seed was finished after the work for the last postponed one began."""

    def wake(self) -> None:
        """Check for work now: seeds were added, a seed is finished, or the gate was opened."""
        self._changed.set()

    async def run(self, context: Context) -> None:
        """Work until no seed is left or the run is stopped."""
        context.ready()
        self.progress.active = 0
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                tasks.start_soon(self._end_early, tasks.cancel_scope)
                await self._work_through(tasks)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._release()
        self.shutdown.no_more_claims = True
        self.shutdown.finished.set()

    async def _work_through(self, tasks: anyio.abc.TaskGroup) -> None:
        try:
            # A run that was paused or stopped before claims nothing.
            self.apply_commands(await self.journal.commands())
            tasks.start_soon(self._follow_commands)
            while await self._start_seeds(tasks) or not await self._is_done():
                with anyio.move_on_after(POLL_SECONDS):
                    await self._changed.wait()
                self._changed = anyio.Event()
        except RunStopped as stopped:
            self.shutdown.request(stopped)
            await anyio.sleep_forever()

    async def _start_seeds(self, tasks: anyio.abc.TaskGroup) -> int:
        """Claim as many seeds as there are free places; return their number."""
        free = self.concurrency - self.progress.active
        if free <= 0 or self.gate.is_closed or self.shutdown.requested.is_set():
            return 0
        claimed = await self.journal.claim(self._owner, free)
        for seed in claimed:
            self.progress.active += 1
            tasks.start_soon(self._finish, seed)
        return len(claimed)

    async def _is_done(self) -> bool:
        """Return whether no seed is left. Counting reads all seeds of the run, so it comes after a claim that found none."""
        if self.progress.active:
            return False
        postponed = await self.journal.postponed()
        counts = await self._count()
        left = counts.waiting + counts.leased - postponed
        if left <= 0 and self._recovered:
            self._recovered = False
            self.shutdown.postponed = None
            self.journal.retry_postponed()
            self.wake()
            return False
        # No await in between: a caller that adds a seed after this learns that it is too late for this process.
        self.shutdown.no_more_claims = left <= 0
        return self.shutdown.no_more_claims

    async def _count(self) -> Counts:
        counts = await self.journal.counts()
        self.progress.done, self.progress.seeds = counts.done, sum(counts)
        return counts

    async def _finish(self, seed: Seed) -> None:
        done = self.progress.done
        with self.trace.seed(str(seed.index), seed.id, agent=self.agent) as operation:
            try:
                try:
                    result = await self._result(seed)
                except WorkPostponed as postponed:
                    logger.warning("seed postponed", seed=seed.id, reason=postponed.message)
                    await self.journal.postpone(seed)
                    self._recovered = self.progress.done > done
                    self.shutdown.postpone(postponed)
                    return
                await self.journal.finish(seed, result)
                operation.finish()
                self._recovered = self.shutdown.postponed is not None
                self.progress.done += 1
            except SeedTaken as taken:
                logger.warning("seed taken over", seed=seed.id, reason=taken.message)
            except (RunStopped, ConfigurationError) as stopped:
                self.shutdown.request(stopped)
            finally:
                self.progress.active -= 1
                self.wake()

    async def _result(self, seed: Seed) -> bytes:
        for last in (*[False] * (TRIES - 1), True):
            try:
                return await self.worker.work(seed)
            except Exception as error:  # boundary: a seed whose work crashes must not end the others
                cause = unwrap_group(error)
                if isinstance(cause, RunStopped | ConfigurationError):
                    raise cause from error
                logger.exception("seed crashed", seed=seed.id, again=not last)
                if last:
                    self.progress.failures["seed crashed"] += 1
                    return self.worker.give_up(seed, unwrap_group(error))
        raise AssertionError("the last try returns or raises")

    async def _follow_commands(self) -> None:
        while True:
            await anyio.sleep(POLL_SECONDS)
            try:
                self.apply_commands(await self.journal.commands())
            except RunStopped as stopped:
                self.shutdown.request(stopped)
                return

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(LEASE_SECONDS / 3)
            try:
                await self.journal.renew(self._owner)
                await self.save_usage()
                # Other processes add and finish seeds.
                await self._count()
            except RunStopped as stopped:
                self.shutdown.request(stopped)
                return

    async def _end_early(self, scope: anyio.CancelScope) -> None:
        await self.shutdown.requested.wait()
        self.shutdown.no_more_claims = True
        self.progress.phase = Phase.STOPPING
        self.gate.close()
        async with anyio.create_task_group() as tasks:

            async def drain() -> None:
                with anyio.move_on_after(self.grace_seconds):
                    await self.gate.wait_idle()
                tasks.cancel_scope.cancel()

            tasks.start_soon(drain)
            await self.shutdown.immediate.wait()
            tasks.cancel_scope.cancel()
        scope.cancel()

    async def _release(self) -> None:
        reason = self.shutdown.reason
        if isinstance(reason, RunStopped) and reason.cause is StopCause.JOURNAL:
            return  # The journal would only time out once more.
        try:
            await self.journal.release(self._owner)
            await self.save_usage()
        except AgentFlowError as error:
            # Harmless: leases of a process that has ended are free on this machine, and expire on others.
            logger.warning("leases not released", reason=str(error))
