"""Workers of one kind: made at need, used again, replaced when they crash."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

import anyio
from msgspec import Struct

from agentflow.actors import (
    Actor,
    ActorGone,
    ChildSpec,
    DynamicSupervisor,
    ExitKind,
    Restart,
    SupervisorGone,
)
from agentflow.errors import RunStopped, StopCause

__all__ = ["Pool", "Question", "Worker"]

M = TypeVar("M")
R = TypeVar("R")

LONGEST_LINE = 500
HIRED_AT_ONCE = 8
"""More workers are not started at a time: who needs one takes the first that comes free, be it a new one or not."""


class Question(Struct, Generic[M]):
    """What a worker is asked."""

    about: M
    """The request."""
    scope: anyio.CancelScope
    """Cancelled when nobody waits for the answer any more."""


class Worker(Actor[Question[M], R | RunStopped | None]):
    """An actor that works on one question at a time, and stops when nobody wants the answer any more."""

    async def work(self, about: M) -> R:
        """Find the answer. What may go wrong is an answer; what must not is a crash.

        :raises RunStopped: if the run can't go on; whoever asked is told.
        """
        raise NotImplementedError

    async def receive(self, message: Question[M]) -> R | RunStopped | None:
        """Work on a question."""
        with message.scope:
            try:
                return await self.work(message.about)
            except RunStopped as stopped:
                # An answer, so that the end of the run is not taken for a crash of the worker.
                return stopped
        return None


class Pool(Generic[M, R]):
    """Workers of one kind under a supervisor of their own. The one that was idle last works next."""

    def __init__(self, name: str, make: Callable[[], Worker[M, R]], *, workers: int) -> None:
        """Describe it; its `spec` is for a supervisor.

        :param name: the name of the whole, `planners`.
        :param workers: the most there are at once; further questions wait, in order.
        """
        self._name = name
        self._template = ChildSpec(
            id=name.removesuffix("s"), start=make, restart=Restart.TEMPORARY, shutdown=0
        )
        self._supervisor = self._new_supervisor()
        self._idle: list[Worker[M, R]] = []
        self._line: deque[asyncio.Future[None]] = deque()
        self._hiring = 0
        self._turns = anyio.Semaphore(workers, fast_acquire=True)

    @property
    def spec(self) -> ChildSpec:
        """How to start it."""
        return ChildSpec(id=self._name, start=self._start, kind="supervisor")

    def _start(self) -> DynamicSupervisor:
        self._idle.clear()
        self._supervisor = self._new_supervisor()
        return self._supervisor

    def _new_supervisor(self) -> DynamicSupervisor:
        return DynamicSupervisor(self._template, name=self._name)

    async def ask(self, about: M, *, again: Callable[[], Awaitable[bool]] | None = None) -> R:
        """Have a worker answer. If it crashes another one is asked, once; if that one crashes too, that is the answer.

        :param again: whether another one may be asked; without it always.
        :raises RunStopped: if the worker says so, or the team has ended.
        """
        async with self._turns:
            try:
                return await self._ask(about, again)
            except ActorGone as gone:
                crash = gone
            try:
                if again is None or await again():
                    return await self._ask(about, again)
            except ActorGone as gone:
                crash = gone
            return self.fallen(one_line(crash))

    def fallen(self, why: str) -> R:
        """The answer when workers crashed."""
        raise NotImplementedError

    async def _ask(self, about: M, again: Callable[[], Awaitable[bool]] | None) -> R:
        while True:
            worker = self._idle.pop() if self._idle else await self._first_free()
            question = Question(about, anyio.CancelScope())
            try:
                answer = await worker.ask(question, timeout=math.inf)
            except ActorGone as gone:
                if gone.reason is not None and gone.reason.kind is ExitKind.CRASHED:
                    raise
                # It was stopped: if its supervisor was not, another one takes over, where that does no harm.
                self._idle.append(await self._new_worker())
                if again is not None and not await again():
                    raise
                continue
            except BaseException:
                question.scope.cancel()
                self._release(worker)
                raise
            self._release(worker)
            if isinstance(answer, RunStopped):
                raise answer
            assert answer is not None
            return answer

    def _release(self, worker: Worker[M, R]) -> None:
        self._idle.append(worker)
        self._call_next()

    def _call_next(self) -> None:
        """Have the first in line look again: a worker is free, or one more may be hired."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return

    async def _first_free(self) -> Worker[M, R]:
        """An idle worker, or a new one."""
        while not self._idle:
            if self._hiring < HIRED_AT_ONCE:
                self._hiring += 1
                try:
                    return await self._new_worker()
                finally:
                    self._hiring -= 1
                    self._call_next()
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    # The call came in the same moment: it is for the next.
                    self._call_next()
                raise
        return self._idle.pop()

    async def _new_worker(self) -> Worker[M, R]:
        try:
            _, worker = await self._supervisor.start_child()
        except SupervisorGone:
            message = f"the {self._name} have ended; run the same again to go on"
            raise RunStopped(StopCause.INTERRUPTED, message) from None
        return cast("Worker[M, R]", worker)


def one_line(error: Exception) -> str:
    """What it says, in one line of bearable length."""
    return " ".join(str(error).split())[:LONGEST_LINE]
