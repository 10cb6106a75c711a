"""Concurrency limit that is fair between callers."""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._shares import Shares


class FairLimiter:
    """Limits the number of concurrent calls. Waiting callers are served round-robin, one call of each at a time.

    A caller with a thousand waiting calls therefore delays another caller by one call, not by a thousand. Slots and places in
    the queue are divided by `Shares`, so known callers are not delayed by long calls of others either.
    """

    def __init__(
        self, max_concurrent: int, max_waiting: int, quotas: Mapping[str, int | None] | None = None
    ) -> None:
        """Allow `max_concurrent` running calls and `max_waiting` waiting calls.

        :param quotas: the known callers, each with its own maximum of running calls, if any.
        """
        quotas = quotas or {}
        self._slots = Shares(max_concurrent, quotas)
        self._waiting = Shares(max_waiting, dict.fromkeys(quotas))
        # No call that waits could run: otherwise the last call to end would have passed its slot on.
        self._queues: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of waiting calls."""
        return sum(map(len, tuple(self._queues.values())))

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncGenerator[None]:
        """Wait for a slot and hold it inside the block.

        :raises ToolFailure: `busy` if too many calls wait already.
        """
        if caller not in self._queues and self._slots.full(caller) is None:
            self._slots.take(caller)
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on(caller)

    async def _wait(self, caller: str) -> None:
        if self._waiting.full(caller) is not None:
            raise ToolFailure(ErrorKind.BUSY, "too many calls are waiting; try again later.")
        turn = anyio.Event()
        queue = self._queues.setdefault(caller, deque())
        queue.append(turn)
        self._waiting.take(caller)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_on(caller)
            else:
                self._forget(caller, turn)
            raise

    def _pass_on(self, holder: str) -> None:
        """Free a slot, and give it to the next caller that may have one."""
        self._slots.give(holder)
        for caller, queue in self._queues.items():
            if self._slots.full(caller) is None:
                self._slots.take(caller)
                self._waiting.give(caller)
                queue.popleft().set()
                self._queues.move_to_end(caller)
                if not queue:
                    del self._queues[caller]
                return

    def _forget(self, caller: str, turn: anyio.Event) -> None:
        queue = self._queues[caller]
        queue.remove(turn)
        self._waiting.give(caller)
        if not queue:
            del self._queues[caller]
