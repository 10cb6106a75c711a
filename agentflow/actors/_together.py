"""Concurrent calls with results in order."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from agentflow.errors import unwrap_group

T = TypeVar("T")


async def together(jobs: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run jobs concurrently and return their results in order; the first error cancels the others.

    That error is raised as itself, not in an exception group. See docs/actors.md.
    """
    waiting = list(jobs)
    if not waiting:
        return []
    if len(waiting) == 1:
        return [await waiting[0]()]
    results: dict[int, T] = {}

    async def run(index: int, job: Callable[[], Awaitable[T]]) -> None:
        results[index] = await job()

    failed: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            for index, job in enumerate(waiting):
                tasks.start_soon(run, index, job)
    except* Exception as group:  # boundary: the first error is raised again, by itself
        failed = unwrap_group(group)
    if failed is not None:
        raise failed
    return [results[index] for index in range(len(waiting))]
