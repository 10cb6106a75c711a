"""Pool that makes a fresh sandbox for each episode before it is needed."""

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio

from agentflow.actors import Context
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox, Tool


class SandboxPool:
    """Child of the run's supervisor that forks sandboxes in advance. If no tool has state, the base is shared instead."""

    def __init__(self, base: Sandbox, tools: Sequence[Tool], *, most: int, ahead: int, wanted: int) -> None:
        """Describe it; the caller closes the base.

        :param most: maximum number of sandboxes alive.
        :param ahead: number of sandboxes made before they are requested.
        :param wanted: expected number of requests; requests beyond it are served on demand.
        """
        self._base = base
        self._backends = sorted({tool.backend for tool in tools if tool.stateful})
        self._free = anyio.Semaphore(most)
        self._ahead = ahead
        self._wanted = wanted
        self._requested = 0
        self._made = 0
        self._more = anyio.Event()
        self._ready: deque[Sandbox | ToolFailure] = deque()
        self._available = anyio.Semaphore(0)

    async def run(self, context: Context) -> None:
        """Make sandboxes until stopped."""
        context.ready()
        if not self._backends:
            return
        try:
            async with anyio.create_task_group() as tasks:
                context.on_stop(tasks.cancel_scope.cancel)
                while True:
                    while self._made < max(self._requested, min(self._wanted, self._requested + self._ahead)):
                        await self._free.acquire()
                        self._made += 1
                        tasks.start_soon(self._make)
                    await self._more.wait()
                    self._more = anyio.Event()
        finally:
            with anyio.CancelScope(shield=True):
                while self._ready:
                    await _close(self._ready.popleft())

    @asynccontextmanager
    async def fresh(self) -> AsyncGenerator[Sandbox]:
        """Yield an unused sandbox and close it at the end of the block.

        :raises ToolFailure: if it can't be made.
        """
        if not self._backends:
            yield self._base
            return
        self._requested += 1
        self._more.set()
        try:
            await self._available.acquire()
        except BaseException:
            self._requested -= 1
            raise
        made = self._ready.popleft()
        try:
            if isinstance(made, ToolFailure):
                raise made
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                await _close(made)
            self._free.release()

    async def _make(self) -> None:
        made: Sandbox | ToolFailure | None = None
        try:
            made = await self._base.fork()
            await made.create_session(self._backends)
        except Exception as error:  # boundary: the waiting task gets the error, whatever it is
            await _close(made)
            made = error if isinstance(error, ToolFailure) else ToolFailure(ErrorKind.FAILED, str(error))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _close(made)
            raise
        self._ready.append(made)
        self._available.release()


async def _close(made: Sandbox | ToolFailure | None) -> None:
    if isinstance(made, Sandbox):
        # It may have ended on its own.
        with suppress(ToolFailure):
            await made.close()
