"""Restarts of children that end by themselves."""

from collections.abc import Sequence
from functools import partial

from agentflow.actors._child import Child
from agentflow.actors._children import (
    ChildCounts,
    ChildInfo,
    ChildSlot,
    ChildState,
    RestartPlan,
    RestartWindow,
)
from agentflow.actors._clock import Clock
from agentflow.actors._errors import RestartLimitReached, Shutdown, StartFailed, UnknownChild
from agentflow.actors._events import NORMAL, ChildEnded, ChildStarted, ExitReason, Observer, RestartPlanned
from agentflow.actors._running import ChildRun
from agentflow.actors._specs import AutoShutdown, Backoff, Restart
from agentflow.actors._supervision import Supervision
from agentflow.errors import ConfigurationError


class Restarting(Supervision):
    """A supervision with restarts; subclasses define the children that are restarted together."""

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
        super().__init__(name=name, clock=clock, observer=observer)
        if intensity < 0 or period <= 0:
            raise ConfigurationError(
                f"{name}: intensity={intensity}, period={period}: the first can't be negative, the second must be "
                "more than 0"
            )
        self._intensity = intensity
        self._period = period
        self._window = RestartWindow(intensity, period)
        self._backoff = backoff
        self._auto_shutdown = auto_shutdown
        self._slots: dict[str, ChildSlot] = {}

    def which_children(self) -> list[ChildInfo]:
        """Return every child, in start order."""
        return [slot.info() for slot in self._slots.values()]

    def count_children(self) -> ChildCounts:
        """Return the numbers of children."""
        slots = self._slots.values()
        supervisors = sum(slot.spec.kind == "supervisor" for slot in slots)
        active = sum(slot.state is ChildState.RUNNING for slot in slots)
        return ChildCounts(len(slots), active, supervisors, len(slots) - supervisors)

    def _together_with(self, slot: ChildSlot) -> list[ChildSlot]:
        """Return the slots that are restarted together, in start order."""
        raise NotImplementedError

    def _keeps(self, slot: ChildSlot) -> bool:
        """Return true if a slot is kept after its child has ended for good."""
        raise NotImplementedError

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
            if self._clock.now() - slot.started_at >= self._period:
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
                f"{self.name}: more than {self._intensity} restarts in {self._period:g} s; "
                f"the last was of {slot.spec.id}: {why}"
            )
            return
        together = self._together_with(slot)
        await self._stop_in_order(together)
        plan = RestartPlan([each for each in together if each.spec.id in self._slots])
        for each in plan.slots:
            each.plan = plan
        delay = 0.0 if self._backoff is None else self._backoff.delay(slot.failures)
        self._observe(RestartPlanned(self.name, tuple(each.spec.id for each in plan.slots), delay))
        if delay > 0:
            self._clock.call_later(delay, partial(self._later, partial(self._carry_out, plan)))
        else:
            await self._carry_out(plan)

    async def _carry_out(self, plan: RestartPlan) -> None:
        """Start the remaining slots of a plan."""
        for slot in plan.slots:
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

    async def _retry(self, slot: ChildSlot, plan: RestartPlan, why: ExitReason) -> None:
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


def _is_restarted(restart: Restart, reason: ExitReason) -> bool:
    return restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and reason.abnormal)
