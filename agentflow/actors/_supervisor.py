"""Supervisors with the semantics of Erlang's OTP."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio

from agentflow.actors._child import Child
from agentflow.actors._children import ChildCounts, ChildSlot, ChildState
from agentflow.actors._clock import Clock
from agentflow.actors._errors import ChildActive, ChildExists, UnknownChild
from agentflow.actors._events import Observer
from agentflow.actors._specs import AutoShutdown, Backoff, ChildSpec, Restart, Strategy, check_specs
from agentflow.actors._supervision import Supervision

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
