"""Gate in front of every effect of a run: while it is closed, nothing new begins and what is in flight completes."""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import anyio

P = ParamSpec("P")
T = TypeVar("T")


class PauseGate:
    """Delay effects while closed. Effects in flight are never interrupted."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Number of effects that have begun and not ended."""
        self._opened: anyio.Event | None = None
        self._idle: anyio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """New effects wait."""
        return self._opened is not None

    def close(self) -> None:
        """Make new effects wait."""
        self._opened = self._opened or anyio.Event()

    def open(self) -> None:
        """Let waiting effects begin."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def wait_idle(self) -> None:
        """Wait until no effect is in flight."""
        while self.in_flight:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    async def run(self, effect: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """Wait until the gate is open, then run the effect."""
        while self._opened is not None:
            await self._opened.wait()
        self.in_flight += 1
        try:
            return await effect(*arguments, **named)
        finally:
            self.in_flight -= 1
            if not self.in_flight and self._idle is not None:
                self._idle.set()
                self._idle = None
