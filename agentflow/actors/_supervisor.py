"""Supervisors with the semantics of Erlang's OTP: serial requests, restarts of children, orderly end."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio

from agentflow.actors._children import (
    SYSTEM_CLOCK,
    AutoShutdown,
    Backoff,
    Child,
    ChildCounts,
    ChildInfo,
    ChildRun,
    ChildSlot,
    ChildSpec,
    ChildState,
    Clock,
    Context,
    Restart,
    RestartWindow,
    Strategy,
    check_specs,
)
from agentflow.actors._errors import (
    NORMAL,
    SHUTDOWN,
    ActorError,
    ChildActive,
    ChildEnded,
    ChildExists,
    ChildStarted,
    ExitReason,
    Observer,
    RestartLimitReached,
    RestartPlanned,
    Shutdown,
    StartFailed,
    SupervisorEnding,
    SupervisorEvent,
    SupervisorGone,
    UnknownChild,
)
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


C = TypeVar("C")


class Supervisor(Supervision):
    """Starts children in order, restarts them after failures, and stops them in reverse order. See docs/actors.md.

    Each child starts when the one before it is ready. More than `intensity` restarts within `period` seconds end the
    supervisor with all its children; its own supervisor then decides what happens. A supervisor lives once: its spec
    creates a new one at each start.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec] = (),
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: int = 1,
        period: float = 5.0,
        backoff: Backoff | None = None,
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
        clock: Clock | None = None,
        observer: Observer | None = None,
        name: str = "supervisor",
    ) -> None:
        super().__init__(
            name=name,
            intensity=intensity,
            period=period,
            backoff=backoff,
            auto_shutdown=auto_shutdown,
            clock=clock,
            observer=observer,
        )
        check_specs(children, auto_shutdown)
        self._initial = tuple(children)
        self._strategy = strategy

    def child(self, id: str, kind: type[C]) -> C:
        """Return the running child of that name. A restart creates another one, so do not keep it.

        :raises UnknownChild: if there is none, or it does not run.
        """
        slot = self._slot(id)
        child = slot.running.child if slot.running is not None else None
        if not isinstance(child, kind):
            raise UnknownChild(f"{self.name} has no running {kind.__name__} {id!r}: it is {slot.state}")
        return child

    def spec(self, id: str) -> ChildSpec:
        """Return the spec of a child.

        :raises UnknownChild: if there is none.
        """
        return self._slot(id).spec

    async def start_child(self, spec: ChildSpec) -> Child | None:
        """Add a child after the others, and start it; return `None` if it asked to be ignored.

        :raises ChildExists: if the id is taken.
        :raises StartFailed: if it did not start; its spec is not kept.
        :raises SupervisorGone: if the supervisor has ended.
        """
        check_specs([spec], self._auto_shutdown)
        return await self._request(partial(self._start_child, spec))

    async def terminate_child(self, id: str) -> None:
        """Stop a child. Its spec is kept unless it is temporary.

        :raises UnknownChild: if there is none.
        :raises SupervisorGone: if the supervisor has ended.
        """
        await self._request(partial(self._terminate_child, id))

    async def restart_child(self, id: str) -> Child | None:
        """Start a stopped child again.

        :raises UnknownChild: if there is none.
        :raises ChildActive: if it runs or is being restarted.
        :raises StartFailed: if it did not start; its spec is kept.
        :raises SupervisorGone: if the supervisor has ended.
        """
        return await self._request(partial(self._restart_child, id))

    async def delete_child(self, id: str) -> None:
        """Forget a stopped child.

        :raises UnknownChild: if there is none.
        :raises ChildActive: if it runs or is being restarted.
        :raises SupervisorGone: if the supervisor has ended.
        """
        await self._request(partial(self._delete_child, id))

    async def _start_children(self) -> None:
        for spec in self._initial:
            slot = self._slots[spec.id] = ChildSlot(spec)
            await self._start(slot)

    async def _stop_children(self) -> None:
        await self._stop_in_order(list(self._slots.values()))

    async def _start_child(self, spec: ChildSpec) -> Child | None:
        if spec.id in self._slots:
            raise ChildExists(
                f"{self.name} has a child {spec.id!r} already: it is {self._slots[spec.id].state}"
            )
        return await self._start_new(spec)

    async def _terminate_child(self, id: str) -> None:
        await self._stop_in_order([self._slot(id)])

    async def _restart_child(self, id: str) -> Child | None:
        return await self._start(self._stopped(id))

    async def _delete_child(self, id: str) -> None:
        del self._slots[self._stopped(id).spec.id]

    def _stopped(self, id: str) -> ChildSlot:
        slot = self._slot(id)
        if slot.state is not ChildState.STOPPED:
            raise ChildActive(f"child {id!r} of {self.name} is {slot.state}")
        return slot

    def _together_with(self, slot: ChildSlot) -> list[ChildSlot]:
        if self._strategy is Strategy.ONE_FOR_ONE:
            return [slot]
        slots = list(self._slots.values())
        return slots if self._strategy is Strategy.ONE_FOR_ALL else slots[slots.index(slot) :]

    def _keeps(self, slot: ChildSlot) -> bool:
        return slot.spec.restart is not Restart.TEMPORARY


class DynamicSupervisor(Supervision):
    """Dynamic children of one spec (OTP's `simple_one_for_one`). See docs/actors.md.

    It starts empty. Each child gets the arguments of its `start_child`, at restarts too, and an id of the spec's id and a
    number. A child that has ended for good is forgotten. All children are stopped at once, in no order.
    """

    def __init__(
        self,
        template: ChildSpec,
        *,
        intensity: int = 1,
        period: float = 5.0,
        backoff: Backoff | None = None,
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
        clock: Clock | None = None,
        observer: Observer | None = None,
        name: str = "supervisor",
    ) -> None:
        super().__init__(
            name=name,
            intensity=intensity,
            period=period,
            backoff=backoff,
            auto_shutdown=auto_shutdown,
            clock=clock,
            observer=observer,
        )
        check_specs([template], auto_shutdown)
        self._template = template
        self._made = 0

    async def start_child(self, *arguments: object) -> tuple[str, Child | None]:
        """Start a child with these arguments; return its id and the child, or `None` if it asked to be ignored.

        :raises StartFailed: if it did not start.
        :raises SupervisorGone: if the supervisor has ended.
        """
        return await self._request(partial(self._start_child, arguments))

    async def terminate_child(self, id: str) -> None:
        """Stop a child and forget it.

        :raises UnknownChild: if there is none.
        :raises SupervisorGone: if the supervisor has ended.
        """
        await self._request(partial(self._terminate_child, id))

    def count_children(self) -> ChildCounts:
        """Return the numbers of children; there is one spec."""
        return super().count_children()._replace(specs=1)

    async def _start_children(self) -> None:
        return

    async def _stop_children(self) -> None:
        async with anyio.create_task_group() as stopping:
            for slot in self._slots.values():
                stopping.start_soon(slot.stop)
        self._slots.clear()

    async def _start_child(self, arguments: tuple[object, ...]) -> tuple[str, Child | None]:
        self._made += 1
        spec = replace(self._template, id=f"{self._template.id}-{self._made}")
        return spec.id, await self._start_new(spec, arguments)

    async def _terminate_child(self, id: str) -> None:
        await self._slot(id).stop()
        del self._slots[id]

    def _together_with(self, slot: ChildSlot) -> list[ChildSlot]:
        return [slot]

    def _keeps(self, slot: ChildSlot) -> bool:
        return False
