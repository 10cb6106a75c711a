"""A fresh sandbox for each episode, made before it is needed, so that no model waits for one."""

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio

from agentflow.actors import Context
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox, Tool

__all__ = ["Sandboxes"]


class Sandboxes:
    """A child of the run's supervisor that makes sandboxes ahead. Where no tool has state, the base serves all."""

    def __init__(self, base: Sandbox, tools: Sequence[Tool], *, most: int, ahead: int, wanted: int) -> None:
        """Describe it; whoever gives the base closes it.

        :param most: how many may live at once.
        :param ahead: how many are made before somebody asks.
        :param wanted: how many will be asked for; more are made when they are.
        """
        self._base = base
        self._backends = sorted({tool.backend for tool in tools if tool.stateful})
        self._room = anyio.Semaphore(most)
        self._ahead = ahead
        self._wanted = wanted
        self._asked = 0
        self._made = 0
        self._more = anyio.Event()
        self._ready: deque[Sandbox | ToolFailure] = deque()
        self._there = anyio.Semaphore(0)

    async def run(self, context: Context) -> None:
        """Make sandboxes, as many as will be wanted."""
        context.ready()
        if not self._backends:
            return
        try:
            async with anyio.create_task_group() as tasks:
                context.on_stop(tasks.cancel_scope.cancel)
                while True:
                    while self._made < max(self._asked, min(self._wanted, self._asked + self._ahead)):
                        await self._room.acquire()
                        self._made += 1
                        tasks.start_soon(self._make)
                    await self._more.wait()
                    self._more = anyio.Event()
        finally:
            await self._close_unused()

    @asynccontextmanager
    async def fresh(self) -> AsyncGenerator[Sandbox]:
        """One that nobody has used; it ends with the block.

        :raises ToolFailure: if it can't be made.
        """
        if not self._backends:
            yield self._base
            return
        self._asked += 1
        self._more.set()
        try:
            await self._there.acquire()
        except BaseException:
            self._asked -= 1
            raise
        made = self._ready.popleft()
        try:
            if isinstance(made, ToolFailure):
                raise made
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                await _close(made)
            self._room.release()

    async def _make(self) -> None:
        made: Sandbox | ToolFailure | None = None
        try:
            made = await self._base.fork()
            await made.create_session(self._backends)
        except Exception as error:  # boundary: whoever waits for the sandbox is told, whatever it was
            await _close(made)
            made = error if isinstance(error, ToolFailure) else ToolFailure(ErrorKind.FAILED, str(error))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _close(made)
            raise
        self._ready.append(made)
        self._there.release()

    async def _close_unused(self) -> None:
        with anyio.CancelScope(shield=True):
            while self._ready:
                await _close(self._ready.popleft())


async def _close(made: Sandbox | ToolFailure | None) -> None:
    if isinstance(made, Sandbox):
        # That it has ended by itself is fine.
        with suppress(ToolFailure):
            await made.close()
