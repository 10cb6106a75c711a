"""A gate before everything that has an effect: shut, nothing new begins, and what is in flight ends."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

__all__ = ["Gate"]

A = TypeVar("A")
B = TypeVar("B")


class Gate:
    """Lets effects through, or makes them wait. What is through is never disturbed."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Effects that are through and have not ended."""
        self._opened: anyio.Event | None = None
        self._still: anyio.Event | None = None

    @property
    def is_shut(self) -> bool:
        """New effects wait."""
        return self._opened is not None

    def shut(self) -> None:
        """Make new effects wait."""
        self._opened = self._opened or anyio.Event()

    def open(self) -> None:
        """Let them through again."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def still(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            self._still = self._still or anyio.Event()
            await self._still.wait()

    async def through(self, effect: Callable[[A], Awaitable[B]], about: A) -> B:
        """Wait until it is open, then have the effect."""
        while self._opened is not None:
            await self._opened.wait()
        self.in_flight += 1
        try:
            return await effect(about)
        finally:
            self.in_flight -= 1
            if not self.in_flight and self._still is not None:
                self._still.set()
                self._still = None
