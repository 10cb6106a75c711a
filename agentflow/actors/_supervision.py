"""Common part of all supervisors: lifetime, serial requests, restarts of children, orderly end."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio

from agentflow.actors._child import Child, Context
from agentflow.actors._children import ChildCounts, ChildInfo, ChildRun, ChildSlot, ChildState, RestartWindow
from agentflow.actors._clock import SYSTEM_CLOCK, Clock
from agentflow.actors._errors import (
    ActorError,
    RestartLimitReached,
    Shutdown,
    StartFailed,
    SupervisorGone,
    UnknownChild,
)
from agentflow.actors._events import (
    NORMAL,
    SHUTDOWN,
    ChildEnded,
    ChildStarted,
    ExitReason,
    Observer,
    RestartPlanned,
    SupervisorEnding,
    SupervisorEvent,
)
from agentflow.actors._specs import AutoShutdown, Backoff, ChildSpec, Restart
from agentflow.errors import ConfigurationError

R = TypeVar("R")


class Supervision:
    """Handles requests and ends of children one at a time, restarts children, and stops all of them when it ends.

    It is a child like any other (`run`), and at the top an async context manager: leaving it stops everything in
    order. If it gives up while the body runs, the body is cancelled and `RestartLimitReached` is raised. Subclasses
    define the children, and those that are restarted together.
    """

    def __init__(
        self,
        *,
        name: str,
        intensity: int,
        period: float,
        backoff: Backoff | None,
        auto_shutdown: AutoShutdown,
        clock: Clock | None,
        observer: Observer | None,
    ) -> None:
        if intensity < 0 or period <= 0:
            raise ConfigurationError(
                f"{name}: intensity={intensity}, period={period}: the first can't be negative, the second must be "
                "more than 0"
            )
        self.name = name
        """Name, for events and errors."""
        self._window = RestartWindow(intensity, period)
        self._backoff = backoff
        self._auto_shutdown = auto_shutdown
        self._slots: dict[str, ChildSlot] = {}
        self._clock = clock or SYSTEM_CLOCK
        self._inherits_clock = clock is None
        self._observer = observer
        self._inbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._answers: set[asyncio.Future[object]] = set()
        self._is_serving = False
        self._ending: ActorError | None = None
        self._ended = anyio.Event()
        self._tasks: anyio.abc.TaskGroup
        self._host: anyio.abc.TaskGroup
        self._top: ChildRun

    async def _start_children(self) -> None:
        raise NotImplementedError

    async def _stop_children(self) -> None:
        raise NotImplementedError

    def _together_with(self, slot: ChildSlot) -> list[ChildSlot]:
        """Return the slots that are restarted together, in start order."""
        raise NotImplementedError

    def _keeps(self, slot: ChildSlot) -> bool:
        """Return true if a slot is kept after its child has ended for good."""
        raise NotImplementedError

    async def run(self, context: Context) -> None:
        """Start the children, serve, and stop the children.

        :raises StartFailed: if a child did not start; those started before it were stopped.
        :raises RestartLimitReached: if there were more restarts than allowed.
        :raises Shutdown: if significant children ended.
        """
        if self._inherits_clock:
            self._clock = context.clock
        serving = anyio.CancelScope()
        context.on_stop(serving.cancel)
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                with serving:
                    await self._start_and_serve(context)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end()
        if self._ending is not None:
            raise self._ending

    async def wait(self) -> ExitReason:
        """Wait until it has ended; return the reason."""
        await self._ended.wait()
        return SHUTDOWN if self._ending is None else ExitReason.of(self._ending)

    def which_children(self) -> list[ChildInfo]:
        """Return every child, in start order."""
        return [slot.info() for slot in self._slots.values()]

    def count_children(self) -> ChildCounts:
        """Return the numbers of children."""
        slots = self._slots.values()
        supervisors = sum(slot.spec.kind == "supervisor" for slot in slots)
        active = sum(slot.state is ChildState.RUNNING for slot in slots)
        return ChildCounts(len(slots), active, supervisors, len(slots) - supervisors)

    async def _start_and_serve(self, context: Context) -> None:
        try:
            await self._start_children()
        except StartFailed as error:
            self._ending = error
            return
        self._is_serving = True
        context.ready()
        while self._ending is None:
            action = await self._inbox.get()
            await action()

    async def _end(self) -> None:
        self._is_serving = False
        if self._ending is not None:
            self._observe(SupervisorEnding(self.name, ExitReason.of(self._ending)))
        await self._stop_children()
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(SupervisorGone(f"{self.name} has ended"))
        self._ended.set()

    def _observe(self, event: SupervisorEvent) -> None:
        if self._observer is not None:
            self._observer(event)

    def _later(self, action: Callable[[], Awaitable[None]]) -> None:
        """Queue an action after everything before it."""
        self._inbox.put_nowait(action)

    async def _request(self, action: Callable[[], Awaitable[R]]) -> R:
        """Queue an action, and wait for its result."""
        if not self._is_serving:
            raise SupervisorGone(f"{self.name} is not running")
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._answers.add(answer)  # pyright: ignore[reportArgumentType]
        answer.add_done_callback(self._answers.discard)

        async def serve() -> None:
            if answer.done():
                return
            try:
                result = await action()
            except ActorError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        self._later(serve)
        return await answer

    async def __aenter__(self) -> Self:
        self._host = anyio.create_task_group()
        await self._host.__aenter__()
        spec = ChildSpec(id=self.name, start=lambda: self, kind="supervisor", start_timeout=math.inf)
        self._top = ChildRun(spec, self._clock, on_ready=lambda _: None, on_end=self._top_ended)
        self._host.start_soon(self._top.run)
        try:
            await self._top.started()
        except BaseException as error:
            await self._leave(error)
            if isinstance(error, StartFailed) and self._ending is not None:
                raise self._ending from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallowed = await self._leave(error)
        if (error is None or swallowed) and self._top.reason is not None and _gave_up(self._top.reason):
            raise self._top.reason.error or SupervisorGone(f"{self.name} {self._top.reason}")
        return swallowed

    async def _leave(self, error: BaseException | None) -> bool | None:
        with anyio.CancelScope(shield=True):
            await self._top.stop()
        # A task group would wrap the body's exception in a group; only cancellation is its business.
        if isinstance(error, asyncio.CancelledError):
            return await self._host.__aexit__(type(error), error, error.__traceback__)
        await self._host.__aexit__(None, None, None)
        return None

    def _top_ended(self, top: ChildRun) -> None:
        if top.context.is_ready and top.reason is not None and _gave_up(top.reason):
            self._host.cancel_scope.cancel()

    def _slot(self, id: str) -> ChildSlot:
        if id not in self._slots:
            raise UnknownChild(f"{self.name} has no child {id!r}")
        return self._slots[id]

    async def _start(self, slot: ChildSlot) -> Child | None:
        """Start the slot's child, and wait until it is ready; `None` if it asked to be ignored."""
        running = ChildRun(
            slot.spec,
            self._clock,
            arguments=slot.arguments,
            on_ready=self._child_ready,
            on_end=self._child_ended,
        )
        slot.plan = None
        slot.running = running
        self._tasks.start_soon(running.run)
        try:
            await running.started()
        except StartFailed:
            slot.running = None
            raise
        slot.started_at = self._clock.now()
        if running.ignored:
            self._ended_for_good(slot)
            return None
        return running.child

    async def _start_new(self, spec: ChildSpec, arguments: tuple[object, ...] = ()) -> Child | None:
        """Start a new child; it is forgotten if it does not start."""
        slot = self._slots[spec.id] = ChildSlot(spec, arguments)
        try:
            return await self._start(slot)
        except StartFailed:
            del self._slots[spec.id]
            raise

    def _child_ready(self, running: ChildRun) -> None:
        self._observe(ChildStarted(self.name, running.spec.id))

    def _child_ended(self, running: ChildRun) -> None:
        self._observe(ChildEnded(self.name, running.spec.id, running.reason or NORMAL))
        if running.context.is_ready and not running.stopping:
            self._later(partial(self._handle_end, running))

    async def _handle_end(self, running: ChildRun) -> None:
        slot = self._slots.get(running.spec.id)
        if slot is None or slot.running is not running or running.reason is None:
            return
        slot.running = None
        if _is_restarted(slot.spec.restart, running.reason):
            if self._clock.now() - slot.started_at >= self._window.period:
                slot.failures = 0
            await self._restart(slot, running.reason)
            return
        self._ended_for_good(slot)
        self._consider_shutdown(slot, running.reason)

    def _ended_for_good(self, slot: ChildSlot) -> None:
        slot.running = None
        if not self._keeps(slot):
            self._slots.pop(slot.spec.id, None)

    async def _restart(self, slot: ChildSlot, why: ExitReason) -> None:
        """Stop all children that are restarted with a slot, and start them, now or after a pause."""
        slot.failures += 1
        if not self._window.admits(self._clock.now()):
            self._ending = RestartLimitReached(
                f"{self.name}: more than {self._window.intensity} restarts in {self._window.period:g} s; "
                f"the last was of {slot.spec.id}: {why}"
            )
            return
        together = self._together_with(slot)
        await self._stop_in_order(together)
        plan = [other for other in together if other.spec.id in self._slots]
        for other in plan:
            other.plan = plan
        delay = 0.0 if self._backoff is None else self._backoff.delay(slot.failures)
        self._observe(RestartPlanned(self.name, tuple(other.spec.id for other in plan), delay))
        if delay > 0:
            self._clock.call_later(delay, partial(self._later, partial(self._carry_out, plan)))
        else:
            await self._carry_out(plan)

    async def _carry_out(self, plan: list[ChildSlot]) -> None:
        """Start the remaining slots of a plan."""
        for slot in plan:
            if slot.plan is not plan:
                continue
            try:
                await self._start(slot)
            except StartFailed as error:
                # A failed start counts as another end, in turn: a child that never starts must not block requests.
                slot.plan = plan
                why = error.why if isinstance(error.why, ExitReason) else ExitReason.of(error)
                self._later(partial(self._retry, slot, plan, why))
                return

    async def _retry(self, slot: ChildSlot, plan: list[ChildSlot], why: ExitReason) -> None:
        if slot.plan is plan:
            await self._restart(slot, why)
        else:
            await self._carry_out(plan)

    async def _stop_in_order(self, slots: Sequence[ChildSlot]) -> None:
        """Stop children in reverse start order; temporary ones are forgotten."""
        for slot in reversed(slots):
            await slot.stop()
            if slot.spec.restart is Restart.TEMPORARY:
                self._slots.pop(slot.spec.id, None)

    def _consider_shutdown(self, slot: ChildSlot, reason: ExitReason) -> None:
        if not slot.spec.significant or self._auto_shutdown is AutoShutdown.NEVER:
            return
        if self._auto_shutdown is AutoShutdown.ALL_SIGNIFICANT and any(
            other.spec.significant and other.state is not ChildState.STOPPED for other in self._slots.values()
        ):
            return
        self._ending = Shutdown(f"{self.name}: significant child {slot.spec.id} ended: {reason}")


def _gave_up(reason: ExitReason) -> bool:
    return reason.abnormal or isinstance(reason.error, RestartLimitReached)


def _is_restarted(restart: Restart, reason: ExitReason) -> bool:
    return restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and reason.abnormal)
