"""What a tool knows about the call that it serves."""

from collections.abc import Callable
from typing import TypeAlias

import anyio

from mcp_servers.core._result import Part

__all__ = ["CallContext", "ProgressSink"]

ProgressSink: TypeAlias = Callable[[float, float | None, str | None], None]
"""Takes progress: what is done, the total if known, a message. Must not block; may drop."""


class CallContext:
    """One call. A tool that names a parameter of this type is given it."""

    __slots__ = ("_sink", "deadline", "parts", "principal")

    def __init__(
        self, principal: str, deadline: float | None = None, sink: ProgressSink | None = None
    ) -> None:
        self.principal = principal
        """Who calls."""
        self.deadline = deadline
        """When the call's time is up on the event loop's clock (`anyio.current_time()`); `None`: never."""
        self.parts: list[Part] = []
        """What the call has shown so far."""
        self._sink = sink

    @property
    def wants_progress(self) -> bool:
        """Somebody listens: reporting is not in vain."""
        return self._sink is not None

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. Never blocks; `done` must grow from report to report."""
        if self._sink is not None:
            self._sink(done, total, message)

    def show(self, part: Part) -> None:
        """Add an image, a link or a text to the result, also to that of a call which then fails."""
        self.parts.append(part)

    def seconds_left(self, at_most: float | None = None) -> float | None:
        """The time a part of this call may take: until the deadline, and no more than `at_most`."""
        if self.deadline is None:
            return at_most
        left = max(self.deadline - anyio.current_time(), 0.0)
        return left if at_most is None else min(left, at_most)
