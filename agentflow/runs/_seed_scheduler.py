"""The field: claims seeds, grows each one's tree and harvests it, as many at once as there is room for."""

from collections.abc import Awaitable, Callable

import anyio

from agentflow.actors import Context
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.journal import Run, SeedTaken
from agentflow.runs._pause_gate import Gate
from agentflow.runs._progress import FieldProgress, Phase
from agentflow.runs._supervised_resources import innermost
from agentflow.telemetry import get_logger
from agentflow.trajectory import Seed

__all__ = ["GRACE_SECONDS", "LEASE_SECONDS", "Ending", "Field"]

logger = get_logger(__name__)

LEASE_SECONDS = 30.0
"""How long another machine waits for one that died."""
GRACE_SECONDS = 10.0
"""How long what is in flight may take when the run is to end early."""
POLL_SECONDS = 1.0
"""How often it is asked whether another process has left seeds behind, or added some."""
TRIES = 2
"""A seed whose work crashed is tried once more; what was done for it is not done again."""


class Ending:
    """Whether and how a run is to end; it outlives a field that crashed."""

    def __init__(self) -> None:
        self.stopped: RunStopped | ConfigurationError | None = None
        """Why it ends before its work does; `None`: it does not."""
        self.over = False
        """No seed is claimed any more."""
        self.asked = anyio.Event()
        """It is to end early."""
        self.hurry = anyio.Event()
        """What is in flight is not waited for."""
        self.ended = anyio.Event()
        """The field has ended."""

    def stop(self, why: RunStopped | ConfigurationError) -> None:
        """End early; the first reason counts."""
        if self.stopped is None:
            self.stopped = why
            self.asked.set()
        if isinstance(why, RunStopped) and why.cause is StopCause.JOURNAL:
            # What is in flight could not be kept.
            self.hurry.set()


class Field:
    """A child of the run's supervisor."""

    def __init__(
        self,
        run: Run,
        grow: Callable[[Seed], Awaitable[bytes]],
        give_up: Callable[[Seed, Exception], bytes],
        *,
        owner: str,
        at_once: int,
        gate: Gate,
        ending: Ending,
        progress: FieldProgress,
        renew_seconds: float,
        grace_seconds: float,
        keep_books: Callable[[], Awaitable[None]],
    ) -> None:
        """Describe it.

        :param grow: everything there is to do for a seed; gives its harvest.
        :param give_up: the harvest of a seed whose work crashed again and again.
        :param grace_seconds: how long what is in flight may take when the run is to end early.
        :param keep_books: called now and then, to put down what was consumed.
        """
        self._run = run
        self._grow = grow
        self._give_up = give_up
        self._owner = owner
        self._at_once = at_once
        self._gate = gate
        self._ending = ending
        self._progress = progress
        self._renew_seconds = renew_seconds
        self._grace_seconds = grace_seconds
        self._keep_books = keep_books
        self._changed = anyio.Event()

    def look(self) -> None:
        """Something has changed: seeds were added, a tree is done, the gate is open again."""
        self._changed.set()

    async def run(self, context: Context) -> None:
        """Work until nothing is left, or the run is to end."""
        context.ready()
        self._progress.open_trees = 0
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                tasks.start_soon(self._end_early, tasks.cancel_scope)
                await self._work_through(tasks)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._release()
        self._ending.over = True
        self._ending.ended.set()

    async def _work_through(self, tasks: anyio.abc.TaskGroup) -> None:
        try:
            while not await self._is_done():
                room = self._at_once - self._progress.open_trees
                if room > 0 and not self._gate.is_shut:
                    for seed in await self._run.claim(self._owner, room):
                        self._progress.open_trees += 1
                        tasks.start_soon(self._work, seed)
                with anyio.move_on_after(POLL_SECONDS):
                    await self._changed.wait()
                self._changed = anyio.Event()
        except RunStopped as stopped:
            self._ending.stop(stopped)
            await anyio.sleep_forever()

    async def _is_done(self) -> bool:
        if self._progress.open_trees:
            return False
        counts = await self._run.counts()
        self._progress.done, self._progress.seeds = counts.done, sum(counts)
        # Said in the same breath: whoever adds a seed later is told that it comes too late for this run.
        self._ending.over = not (counts.waiting or counts.leased)
        return self._ending.over

    async def _work(self, seed: Seed) -> None:
        try:
            await self._run.finish(seed, await self._harvest(seed))
            self._progress.done += 1
        except SeedTaken as taken:
            logger.warning("seed taken over", seed=seed.id, reason=taken.message)
        except (RunStopped, ConfigurationError) as stopped:
            self._ending.stop(stopped)
        finally:
            self._progress.open_trees -= 1
            self.look()

    async def _harvest(self, seed: Seed) -> bytes:
        for last in (*[False] * (TRIES - 1), True):
            try:
                return await self._grow(seed)
            except (RunStopped, ConfigurationError):
                raise
            except Exception as error:  # boundary: a seed whose work crashes must not end the others
                logger.exception("seed crashed", seed=seed.id, again=not last)
                if last:
                    return self._give_up(seed, innermost(error))
        raise AssertionError("the last try returns or raises")

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self._renew_seconds)
            try:
                await self._run.renew(self._owner)
                await self._keep_books()
            except RunStopped as stopped:
                self._ending.stop(stopped)
                return

    async def _end_early(self, scope: anyio.CancelScope) -> None:
        await self._ending.asked.wait()
        self._ending.over = True
        self._progress.phase = Phase.STOPPING
        self._gate.shut()
        async with anyio.create_task_group() as tasks:

            async def drain() -> None:
                with anyio.move_on_after(self._grace_seconds):
                    await self._gate.still()
                tasks.cancel_scope.cancel()

            tasks.start_soon(drain)
            await self._ending.hurry.wait()
            tasks.cancel_scope.cancel()
        scope.cancel()

    async def _release(self) -> None:
        stopped = self._ending.stopped
        if isinstance(stopped, RunStopped) and stopped.cause is StopCause.JOURNAL:
            return  # It would only be waited for once more.
        try:
            await self._run.release(self._owner)
            await self._keep_books()
        except AgentFlowError as error:
            # Nobody has to wait for it: the leases of a process that has ended are free on this machine, and run out elsewhere.
            logger.warning("leases not released", reason=str(error))
