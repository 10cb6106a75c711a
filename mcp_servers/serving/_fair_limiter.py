"""A bounded number of calls at once, with a fair turn for every caller."""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from agentflow.errors import ErrorKind, ToolFailure

__all__ = ["FairLimiter"]


class FairLimiter:
    """Lets so many calls run at once. Those that wait are taken in turn: one of each caller, then the next.

    So a caller with a thousand calls waiting holds another one up by one call, not by a thousand.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        """Allow `at_once` calls to run and `waiting` calls to wait."""
        self._free = at_once
        self._room = waiting
        self._queues: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncGenerator[None]:
        """Wait for a turn, and hold it inside.

        :raises ToolFailure: `busy`, if too many wait already.
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
        mine = anyio.Event()
        queue = self._queues.setdefault(caller, deque())
        queue.append(mine)
        self._room -= 1
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._pass_on()
            else:
                self._forget(caller, mine)
            raise

    def _pass_on(self) -> None:
        """Give a turn to the next caller in the round, or keep it free."""
        if not self._queues:
            self._free += 1
            return
        caller, queue = self._queues.popitem(last=False)
        queue.popleft().set()
        self._room += 1
        if queue:
            self._queues[caller] = queue

    def _forget(self, caller: str, mine: anyio.Event) -> None:
        queue = self._queues[caller]
        queue.remove(mine)
        self._room += 1
        if not queue:
            del self._queues[caller]
