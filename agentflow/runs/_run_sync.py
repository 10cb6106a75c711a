"""Running something that awaits from code that does not."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple, Unpack

from anyio.from_thread import start_blocking_portal

__all__ = ["wait_for"]

A = TypeVarTuple("A")
T = TypeVar("T")


def wait_for(work: Callable[[Unpack[A]], Awaitable[T]], *arguments: *A) -> T:
    """What it gives. It also works where a loop runs already, as in a notebook: the work has a thread of its own."""
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(work, *arguments)
        try:
            return future.result()
        except BaseException:
            # Interrupted while it waited: what runs ends in order before this goes on.
            future.cancel()
            raise
