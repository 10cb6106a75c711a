"""Pool of supervised workers: started on demand, reused, and replaced when they crash."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio
import msgspec

from agentflow.actors import (
    Actor,
    ActorGone,
    ChildSpec,
    Clock,
    DynamicSupervisor,
    ExitKind,
    Restart,
    SupervisorGone,
)
from agentflow.engine import EffectGate, run_now
from agentflow.errors import ModelFailureKind, RunStopped, StopCause
from agentflow.models import Call, Message, Model, ask_model
from agentflow.team._schemas import answer_schema
from agentflow.telemetry import carry_trace, current_trace, role_operation
from agentflow.trace import Failure, Reply, Request

if TYPE_CHECKING:
    from types import CoroutineType


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Role")
T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)

MAX_MESSAGE_CHARS = 500
MAX_CONCURRENT_STARTS = 8
"""Workers starting at the same time. Beyond this, a caller waits for the first worker to become free or to start."""

Work = Callable[[Clock], Awaitable[R]]
"""Work for a worker, given the worker's clock."""


class WorkerCrashed(Exception):
    """The worker crashed, and so did its replacement, or the work must not be repeated."""


class Job(Generic[R]):
    """Message that carries work of result type `R` to a worker, and its result back."""

    def __init__(self, work: Work[R]) -> None:
        self.result: R | None = None
        """Result of the work; `None` until it is done, or if the run stopped."""
        self.stopped: RunStopped | None = None
        """End of the run, raised by the work. It is an answer, not a crash of the worker."""
        self._work = work
        self._scope = anyio.CancelScope()
        self._trace = current_trace()

    async def run(self, clock: Clock) -> None:
        """Do the work, unless nobody waits for it any more."""
        with self._scope, carry_trace(self._trace):
            try:
                self.result = await self._work(clock)
            except RunStopped as stopped:
                self.stopped = stopped

    def cancel(self) -> None:
        """Abort the work."""
        self._scope.cancel()


class Worker(Actor[Job[Any], None]):
    """Actor that does one job at a time."""

    async def receive(self, message: Job[Any]) -> None:
        """Do a job."""
        await message.run(self._clock)


class RolePool:
    """Workers under a supervisor of their own. The most recently used idle worker is used next."""

    def __init__(self, name: str, *, workers: int) -> None:
        """Describe the pool; its `spec` starts it under a supervisor.

        :param name: name of the pool in the plural, such as `planners`.
        :param workers: maximum number of workers; further requests wait in order.
        """
        self._name = name
        self._template = ChildSpec(
            id=name.removesuffix("s"), start=Worker, restart=Restart.TEMPORARY, shutdown=0
        )
        self._supervisor = self._new_supervisor()
        self._idle: list[Worker] = []
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._starting = 0
        self._slots = anyio.Semaphore(workers, fast_acquire=True)

    @property
    def spec(self) -> ChildSpec:
        """Child specification of the pool."""
        return ChildSpec(id=self._name, start=self._start, kind="supervisor")

    async def ask(self, work: Work[R], *, again: Callable[[], Awaitable[bool]] | None = None) -> R:
        """Return the result of the work. If the worker crashes, one other worker tries again.

        :param again: decides whether the work may be repeated; by default it may.
        :raises WorkerCrashed: if the second worker crashes too, or the work must not be repeated.
        :raises RunStopped: if the work raises it, or the pool has ended.
        """
        async with self._slots:
            try:
                return await self._ask(work, again)
            except ActorGone as gone:
                crash = gone
            try:
                if again is None or await again():
                    return await self._ask(work, again)
            except ActorGone as gone:
                crash = gone
            raise WorkerCrashed(" ".join(str(crash).split())[:MAX_MESSAGE_CHARS])

    def _start(self) -> DynamicSupervisor:
        self._idle.clear()
        self._supervisor = self._new_supervisor()
        return self._supervisor

    def _new_supervisor(self) -> DynamicSupervisor:
        return DynamicSupervisor(self._template, name=self._name)

    async def _ask(self, work: Work[R], again: Callable[[], Awaitable[bool]] | None) -> R:
        while True:
            worker = self._idle.pop() if self._idle else await self._next_worker()
            job = Job(work)
            try:
                await worker.ask(job, timeout=math.inf)
            except ActorGone as gone:
                if gone.reason is not None and gone.reason.kind is ExitKind.CRASHED:
                    raise
                # The worker was stopped. If its supervisor was not, another worker takes over where that is safe.
                self._idle.append(await self._new_worker())
                if again is not None and not await again():
                    raise
                continue
            except BaseException:
                job.cancel()
                self._release(worker)
                raise
            self._release(worker)
            if job.stopped is not None:
                raise job.stopped
            assert job.result is not None, "a job that was not cancelled has a result"
            return job.result

    def _release(self, worker: Worker) -> None:
        self._idle.append(worker)
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake the first waiter: a worker is free, or another one may be started."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _next_worker(self) -> Worker:
        """Return an idle worker or a new one, whichever is available first."""
        while not self._idle:
            if self._starting < MAX_CONCURRENT_STARTS:
                self._starting += 1
                try:
                    return await self._new_worker()
                finally:
                    self._starting -= 1
                    self._wake_next()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    # Woken and cancelled at the same time: pass the wake-up on.
                    self._wake_next()
                raise
        return self._idle.pop()

    async def _new_worker(self) -> Worker:
        try:
            _, worker = await self._supervisor.start_child()
        except SupervisorGone:
            message = f"the {self._name} have ended; run the same command to resume"
            raise RunStopped(StopCause.INTERRUPTED, message) from None
        assert isinstance(worker, Worker), "the template starts workers only"
        return worker


class Role:
    """Base of the roles: a class with one typed method per request, each of which runs in a supervised worker."""

    def __init__(self, name: str, *, workers: int) -> None:
        """Create the role.

        :param name: name of its pool in the plural, such as `planners`.
        :param workers: maximum number of workers.
        """
        self.name = name.removesuffix("s")
        """Name of the role."""
        self.gate: EffectGate = run_now
        """Gate in front of its requests."""
        self.pool = RolePool(name, workers=workers)
        """The workers."""


def in_worker(
    method: Callable[Concatenate[S, P], Awaitable[Reply[T]]],
) -> Callable[Concatenate[S, P], "CoroutineType[Any, Any, Reply[T]]"]:
    """Run a method of a role in one of its workers; a crash becomes a failed reply.

    Example::

        class Planner(Role):
            @in_worker
            async def plan(self, request: PlanRequest) -> Reply[Plan]: ...
    """
    name = method.__name__

    @wraps(method)
    async def ask(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Reply[T]:
        async def answer() -> Reply[T]:
            with role_operation(self.name, name) as operation:
                try:
                    reply = await self.pool.ask(lambda _: method(self, *args, **kwargs))
                except WorkerCrashed as crash:
                    reply = Reply[T](failure=Failure(ModelFailureKind.UNAVAILABLE, str(crash)))
                if reply.failure is not None:
                    operation.failed(reply.failure.kind)
                return reply

        return await self.gate(answer)

    return ask


async def answer_request(
    model: Model,
    request: Request[A],
    answer: type[A],
    messages: tuple[Message, ...],
    *,
    role: str,
    schema: dict[str, Any] | None = None,
) -> Reply[A]:
    """Have a model answer a request to a role.

    :param answer: the type of the answer.
    :param messages: the request as messages.
    :param role: the role, by which usage is accounted.
    :param schema: JSON schema of the answer, if not that of its type.
    :raises RunStopped: if the model cannot be used any more.
    """
    schema = answer_schema(answer) if schema is None else schema
    return await ask_model(
        model, Call(role=role, messages=messages, reply=answer, schema=schema, request=request)
    )
