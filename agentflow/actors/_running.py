"""One run of one child: task, handshake and end."""

import asyncio
from collections.abc import Callable

import anyio

from agentflow.actors._child import Child, Context, Ignore
from agentflow.actors._clock import Clock
from agentflow.actors._errors import StartFailed, StartTimeout
from agentflow.actors._events import KILLED, NORMAL, SHUTDOWN, ExitKind, ExitReason
from agentflow.actors._specs import ChildSpec


class ChildRun:
    """A child from start to end."""

    __slots__ = (
        "_arguments",
        "_clock",
        "_killed",
        "_on_end",
        "_on_ready",
        "_scope",
        "_waiters",
        "child",
        "context",
        "ignored",
        "reason",
        "spec",
        "stopping",
    )

    def __init__(
        self,
        spec: ChildSpec,
        clock: Clock,
        *,
        arguments: tuple[object, ...] = (),
        on_ready: Callable[["ChildRun"], None],
        on_end: Callable[["ChildRun"], None],
    ) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.reason: ExitReason | None = None
        self.ignored = False
        self.stopping = False
        self.context = Context(spec.id, clock, self._became_ready)
        # The scope is a shield, because only the supervisor ends its children: one by one, in order.
        self._scope = anyio.CancelScope(shield=True)
        self._arguments = arguments
        self._clock = clock
        self._killed = False
        self._on_ready = on_ready
        self._on_end = on_end
        self._waiters: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Create the child, and run it."""
        reason = KILLED
        try:
            with self._scope:
                self.child = self.spec.start(*self._arguments)
                await self.child.run(self.context)
                reason = NORMAL
        except Ignore:
            self.ignored = True
            reason = NORMAL
        # Boundary between a child and its supervisor: any exception of a child is its exit reason.
        except Exception as error:
            reason = ExitReason.of(error)
        finally:
            self.reason = self._as_asked(reason)
            self._notify()
            self._on_end(self)

    def _as_asked(self, reason: ExitReason) -> ExitReason:
        """Return the exit reason as it counts after a request to end."""
        if self._killed and reason.kind in (ExitKind.NORMAL, ExitKind.KILLED):
            return KILLED
        if self.stopping and reason.kind in (ExitKind.NORMAL, ExitKind.KILLED):
            return SHUTDOWN
        return reason

    async def started(self) -> None:
        """Wait until the child is ready, or has asked to be ignored.

        :raises StartFailed: if it ended instead, or was stopped at its time limit.
        """
        with self._clock.deadline(self.spec.start_timeout):
            await self._wait_for(lambda: self.context.is_ready or self.reason is not None)
        if self.context.is_ready or self.ignored:
            return
        if self.reason is None:
            self._killed = True
            await self.stop()
            raise StartTimeout(self.spec.id, f"not ready after {self.spec.start_timeout:g} s")
        raise StartFailed(self.spec.id, self.reason)

    async def stop(self) -> ExitReason:
        """Ask the child to end, cancel it after its time limit, and wait for its end."""
        if self.reason is None:
            self.stopping = True
            self._killed = self._killed or not self.spec.grace
            if self._killed or not self._ask():
                self._scope.cancel()
            with self._clock.deadline(self.spec.grace):
                await self._wait_for(lambda: self.reason is not None)
        if self.reason is None:
            self._killed = True
            self._scope.cancel()
        await self._wait_for(lambda: self.reason is not None)
        return self.reason or KILLED

    def _ask(self) -> bool:
        """Call the child's own stop callback; return `False` if it has none."""
        if self.context.stop_callback is None:
            return False
        try:
            self.context.stop_callback()
        # The callback is the child's own code: its failure must not keep the supervisor from stopping the child.
        except Exception:
            return False
        return True

    def _became_ready(self) -> None:
        self._notify()
        self._on_ready(self)

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
