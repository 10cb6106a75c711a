"""Helpers for tasks: context managers that outlive the task that opened them, concurrent calls, calls in threads."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Generic, ParamSpec, TypeVar

import anyio
from anyio import to_thread

from agentflow.errors import RunStopped, StopCause, WorkPostponed, unwrap_group

T = TypeVar("T")
P = ParamSpec("P")


class Hosted(Generic[T]):
    """Keeps an async context manager entered, in a task of its own. See docs/actors.md.

    A task group must be left by the task that entered it, but a sandbox may be opened by one task, shared by its forks
    and closed by another. With this, `open` and `close` may be called from any task of the loop.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leave_error: Exception | None = None

    @property
    def alive(self) -> bool:
        """Return true while it is open: false before `open`, after `close`, and once it has failed."""
        return self._task is not None and not self._task.done()

    async def open(self) -> T:
        """Enter the context manager, once; errors of entering are raised here."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[T] = loop.create_future()
        # The only task without a task group: it ends with `close`, and a loop that ends cancels it,
        # which leaves the context manager properly.
        self._task = loop.create_task(self._keep(opened), context=contextvars.Context())
        try:
            await asyncio.wait({opened})
        except asyncio.CancelledError:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({self._task})
            raise
        return opened.result()

    async def close(self) -> None:
        """Leave the context manager; errors of leaving are raised here. No effect if it is not open."""
        if self._task is None or self._task.done():
            return
        self._leave.set()
        await asyncio.wait({self._task})
        if self._leave_error is not None:
            raise self._leave_error

    async def _keep(self, opened: asyncio.Future[T]) -> None:
        try:
            async with self._make() as value:
                opened.set_result(value)
                await self._leave.wait()
        except Exception as error:  # boundary: `open` or `close` raises it in the calling task
            if opened.done():
                self._leave_error = error
            else:
                opened.set_exception(error)
        finally:
            opened.cancel()


async def together(jobs: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run jobs concurrently and return their results in order; the first error cancels the others.

    That error is raised as itself, not in an exception group. After `RunStopped`, and so `WorkPostponed`, the others
    complete, because their model calls are paid for; unless the journal can't record them. See docs/actors.md.
    """
    waiting = list(jobs)
    if len(waiting) <= 1:
        return [await job() for job in waiting]
    results: dict[int, T] = {}
    stops: list[RunStopped] = []

    async def run(index: int, job: Callable[[], Awaitable[T]]) -> None:
        try:
            results[index] = await job()
        except RunStopped as stop:
            if stop.cause is StopCause.JOURNAL:
                raise
            stops.append(stop)

    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            for index, job in enumerate(waiting):
                tasks.start_soon(run, index, job)
    except* Exception as group:  # boundary: the first error is raised again, by itself
        failure = unwrap_group(group)
    if failure is not None:
        raise failure
    if stops:
        # The end of the run takes precedence over that of a seed.
        raise min(stops, key=lambda stop: isinstance(stop, WorkPostponed))
    return [results[index] for index in range(len(waiting))]


async def computed(in_thread: bool, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function, called in a thread if it takes long.

    Example::

        call = await computed(len(body) > LARGE_BYTES, parse, body)

    :param in_thread: call it in a thread.
    """
    if not in_thread:
        return compute(*args, **kwargs)
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        # An exception that a thread raises would keep everything that was read until the next collection of cycles.
        try:
            results.append(compute(*args, **kwargs))
        except Exception as error:  # boundary: raised below
            errors.append(error)

    await to_thread.run_sync(run)
    if errors:
        raise errors.pop()
    return results[0]
