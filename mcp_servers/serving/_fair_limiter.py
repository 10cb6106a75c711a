"""Concurrency limit that is fair between callers."""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from agentflow.errors import ErrorKind, ToolFailure


class FairLimiter:
    """Limits the number of concurrent calls. Waiting callers are served round-robin, one call of each at a time.

    A caller with a thousand waiting calls therefore delays another caller by one call, not by a thousand.
    """

    def __init__(self, max_concurrent: int, max_waiting: int) -> None:
        """Allow `max_concurrent` running calls and `max_waiting` waiting calls."""
        self._free = max_concurrent
        self._room = max_waiting
        self._queues: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncGenerator[None]:
        """Wait for a slot and hold it inside the block.

        :raises ToolFailure: `busy` if too many calls wait already.
        """
        if self._free and not self._queues:
            self._free -= 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: str) -> None:
        if self._room == 0:
            raise ToolFailure(ErrorKind.BUSY, "too many calls are waiting; try again later.")
        turn = anyio.Event()
        queue = self._queues.setdefault(caller, deque())
        queue.append(turn)
        self._room -= 1
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_on()
            else:
                self._forget(caller, turn)
            raise

    def _pass_on(self) -> None:
        """Pass a slot to the next caller, or free it."""
        if not self._queues:
            self._free += 1
            return
        caller, queue = self._queues.popitem(last=False)
        queue.popleft().set()
        self._room += 1
        if queue:
            self._queues[caller] = queue

    def _forget(self, caller: str, turn: anyio.Event) -> None:
        queue = self._queues[caller]
        queue.remove(turn)
        self._room += 1
        if not queue:
            del self._queues[caller]
