"""A worker thread for the pure stages of a tree, so that the calls of other trees continue."""

from collections.abc import Callable
from typing import Final, TypeVar

import anyio.to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")

_LIMITER: Final[RunVar[anyio.CapacityLimiter]] = RunVar("agentflow.synthesis.worker_thread")


async def in_worker_thread(work: Callable[[], T]) -> T:
    """Return the result of a function that only computes.

    It runs in a thread, one tree at a time: several would share the interpreter's lock and finish no earlier.
    """
    limiter = _LIMITER.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(1)
        _LIMITER.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)
