"""Stream of a run's changes to its viewers. The journal is asked once for all viewers of a run."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import anyio
import msgspec

from agentflow.errors import AgentFlowError, error_line
from agentflow.inspection import RunChanges

POLL_SECONDS: Final = 0.5
"""Seconds between two questions."""
_PING_SECONDS: Final = 15.0
_KEPT: Final = 8

ReadChanges = Callable[[str], Awaitable[RunChanges]]
"""Returns the changes after a cursor."""


class ChangeFeed:
    """Changes of a run or of one of its seeds. Viewers that ask for the same news at the same time share one answer."""

    def __init__(self, read: ReadChanges, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._read = read
        self._clock = clock
        self._lock = anyio.Lock()
        self._answers: dict[str, tuple[float, RunChanges]] = {}

    async def after(self, cursor: str) -> RunChanges:
        """Return the changes after a cursor, at most `POLL_SECONDS` old."""
        async with self._lock:
            made, known = self._answers.get(cursor, (float("-inf"), None))
            if known is None or self._clock() - made >= POLL_SECONDS * 0.9:
                known = await self._read(cursor)
                self._answers.pop(cursor, None)
                self._answers[cursor] = (self._clock(), known)
                while len(self._answers) > _KEPT:
                    del self._answers[next(iter(self._answers))]
            return known


async def change_events(feed: ChangeFeed, cursor: str) -> AsyncGenerator[bytes]:
    """Yield server-sent events: `change` with the JSON of the changes, `trouble` while the run can't be read.

    The id of an event is the cursor, so a browser that connects again misses nothing.

    :param cursor: state that the viewer knows; empty: the present one.
    """
    # The first bytes are sent when the cursor is known: what is committed after them is never missed.
    silent, in_trouble = _PING_SECONDS, False
    while True:
        event = b""
        try:
            changes = await feed.after(cursor)
        except (AgentFlowError, OSError, KeyError) as error:
            if not in_trouble:
                event = _event("trouble", "", msgspec.json.encode({"error": error_line(error)}))
            in_trouble = True
        else:
            if in_trouble or changes.summary or changes.seeds or changes.spots or changes.steps:
                event = _event("change", changes.cursor, msgspec.json.encode(changes))
            cursor, in_trouble = changes.cursor, False
        if not event and silent >= _PING_SECONDS:
            event = b": still here\n\n"
        if event:
            yield event
            silent = 0.0
        await anyio.sleep(POLL_SECONDS)
        silent += POLL_SECONDS


def _event(name: str, cursor: str, data: bytes) -> bytes:
    # JSON has no line feeds, and neither has a cursor.
    identity = b"id: " + cursor.encode() + b"\n" if cursor else b""
    return b"event: " + name.encode() + b"\n" + identity + b"data: " + data + b"\n\n"
