"""Doing several things at once."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from agentflow.errors import RunStopped

__all__ = ["together"]

T = TypeVar("T")


async def together(jobs: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Their results, in the order of the jobs; the first error ends the others.

    A `RunStopped` comes out as itself, never inside a group of exceptions, so that whoever runs the whole finds it.
    """
    waiting = list(jobs)
    if not waiting:
        return []
    if len(waiting) == 1:
        return [await waiting[0]()]
    results: dict[int, T] = {}

    async def run(index: int, job: Callable[[], Awaitable[T]]) -> None:
        results[index] = await job()

    stopped: RunStopped | None = None
    try:
        async with anyio.create_task_group() as tasks:
            for index, job in enumerate(waiting):
                tasks.start_soon(run, index, job)
    except* RunStopped as group:
        stopped = _first(group)
    if stopped is not None:
        raise stopped
    return [results[index] for index in range(len(waiting))]


def _first(group: BaseExceptionGroup[RunStopped]) -> RunStopped:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
