"""Calls pass a gate together; a fork passes it alone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Gate"]


class Gate:
    """Counts the calls that run, and lets one visitor in alone: after those that run, before those that come."""

    __slots__ = ("_drained", "_opened", "_turn", "running")

    def __init__(self) -> None:
        self.running = 0
        """Calls inside now."""
        self._turn = anyio.Lock()
        self._opened: anyio.Event | None = None
        self._drained: anyio.Event | None = None

    async def enter(self) -> None:
        """Go in; waits while somebody is, or waits to be, alone. Follow by `leave`."""
        while self._opened is not None:
            await self._opened.wait()
        self.running += 1

    def leave(self) -> None:
        """Go out."""
        self.running -= 1
        if self.running == 0 and self._drained is not None:
            self._drained.set()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Wait until all have left, and keep others out meanwhile."""
        async with self._turn:
            opened = self._opened = anyio.Event()
            try:
                if self.running:
                    self._drained = anyio.Event()
                    await self._drained.wait()
                yield
            finally:
                self._drained = self._opened = None
                opened.set()
