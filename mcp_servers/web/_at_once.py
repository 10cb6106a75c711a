"""Several things at once, each with an outcome of its own."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from agentflow.errors import ToolFailure

__all__ = ["each"]

A = TypeVar("A")
R = TypeVar("R")


async def each(given: Sequence[A], work: Callable[[A], Awaitable[R]], at_most: int) -> list[R | ToolFailure]:
    """What the work makes of each, in their order; a failure stands for itself and touches no other."""
    done: dict[int, R | ToolFailure] = {}
    places = anyio.Semaphore(at_most)

    async def one(place: int, thing: A) -> None:
        async with places:
            try:
                done[place] = await work(thing)
            except ToolFailure as failure:
                done[place] = failure

    async with anyio.create_task_group() as group:
        for place, thing in enumerate(given):
            group.start_soon(one, place, thing)
    return [done[place] for place in range(len(given))]
