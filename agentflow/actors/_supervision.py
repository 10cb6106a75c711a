"""Common part of all supervisors: lifetime, serial requests, orderly end."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import anyio

from agentflow.actors._child import Context
from agentflow.actors._clock import SYSTEM_CLOCK, Clock
from agentflow.actors._errors import ActorError, RestartLimitReached, StartFailed, SupervisorGone
from agentflow.actors._events import SHUTDOWN, ExitReason, Observer, SupervisorEnding, SupervisorEvent
from agentflow.actors._running import ChildRun
from agentflow.actors._specs import ChildSpec

R = TypeVar("R")


class Supervision:
    """Handles requests and ends of children one at a time; stops all children when it ends.

    It is a child like any other (`run`), and at the top an async context manager: leaving it stops everything in
    order. If it gives up while the body runs, the body is cancelled and `RestartLimitReached` is raised.
    """

    def __init__(self, *, name: str, clock: Clock | None, observer: Observer | None) -> None:
        self.name = name
        """Name, for events and errors."""
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


def _gave_up(reason: ExitReason) -> bool:
    return reason.abnormal or isinstance(reason.error, RestartLimitReached)
