from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from agentflow.actors import Hosted


class Room:
    """A context manager with a task group, which must be left by the task that entered it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.opening = anyio.Event()
        self.may_open = anyio.Event()
        self.may_open.set()
        self.collapse = anyio.Event()

    async def _collapse(self) -> None:
        await self.collapse.wait()
        raise OSError("collapsed")

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[str]:
        """Enter it."""
        try:
            async with anyio.create_task_group() as group:
                self.opening.set()
                await self.may_open.wait()
                self.log.append("in")
                group.start_soon(self._collapse)
                yield "room"
                group.cancel_scope.cancel()
        finally:
            self.log.append("out")


@pytest.mark.promise("sandbox:hosted")
async def test_a_hosted_context_can_be_left_by_another_task() -> None:
    room = Room()
    hosted = Hosted(room.entered)
    async with anyio.create_task_group() as group:
        group.start_soon(hosted.open)
    assert hosted.alive
    async with anyio.create_task_group() as group:
        group.start_soon(hosted.close)
        group.start_soon(hosted.close)
    assert room.log == ["in", "out"]
    assert not hosted.alive


@pytest.mark.promise("sandbox:hosted")
async def test_cancelling_the_opening_leaves_nothing_behind() -> None:
    room = Room()
    room.may_open = anyio.Event()
    hosted = Hosted(room.entered)
    async with anyio.create_task_group() as group:
        group.start_soon(hosted.open)
        await room.opening.wait()
        group.cancel_scope.cancel()
    assert room.log == ["out"]
    assert not hosted.alive


@pytest.mark.promise("sandbox:hosted")
async def test_an_error_of_entering_is_raised_to_the_opener() -> None:
    @asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        raise OSError("locked")
        yield

    hosted = Hosted(broken)
    with pytest.raises(OSError, match="locked"):
        await hosted.open()
    await hosted.close()


@pytest.mark.promise("sandbox:hosted")
async def test_a_failed_hosted_context_is_not_alive_and_can_be_closed() -> None:
    room = Room()
    hosted = Hosted(room.entered)
    await hosted.open()
    room.collapse.set()
    with anyio.fail_after(60):
        while hosted.alive:
            await anyio.lowlevel.checkpoint()
    await hosted.close()
    assert room.log == ["in", "out"]
