"""Progress from a tool that must not wait to a client that may be slow."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from mcp_servers.core._context import ProgressSink

__all__ = ["relayed"]

PENDING = 64
"""Steps that may wait for a slow client; more are skipped."""


@asynccontextmanager
async def relayed(
    report: Callable[[float, float | None, str | None], Awaitable[None]],
) -> AsyncGenerator[ProgressSink]:
    """A sink that hands steps to `report` in order; all that were taken are reported before this is left."""
    send, receive = anyio.create_memory_object_stream[tuple[float, float | None, str | None]](PENDING)

    def sink(done: float, total: float | None, message: str | None) -> None:
        try:
            send.send_nowait((done, total, message))
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # better to skip a step than to hold up the work, or to say it to a client that is gone

    async def relay() -> None:
        async with receive:
            async for step in receive:
                await report(*step)

    async with anyio.create_task_group() as group:
        group.start_soon(relay)
        with send:
            yield sink
