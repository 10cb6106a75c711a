"""Running a coroutine from synchronous code."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple, Unpack

from anyio.from_thread import start_blocking_portal

A = TypeVarTuple("A")
T = TypeVar("T")


def run_sync(work: Callable[[Unpack[A]], Awaitable[T]], *arguments: *A) -> T:
    """Run it in an event loop in a thread and return its result; works inside a running loop, as in a notebook."""
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(work, *arguments)
        try:
            return future.result()
        except BaseException:
            # Interrupted while waiting: the work is cancelled and cleaned up before the interrupt propagates.
            future.cancel()
            raise
