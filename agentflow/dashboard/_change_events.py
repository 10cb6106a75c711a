"""News of runs for any number of viewers: one question to a journal, and one answer of each path, serves all of them."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import anyio
import msgspec

from agentflow.errors import AgentFlowError, error_line
from agentflow.inspection import RunChanges

ReadChanges: TypeAlias = Callable[[str], Awaitable[RunChanges]]
"""Returns the changes after a cursor."""

POLL_SECONDS: Final = 0.5
"""Seconds between two questions to a run about its changes."""
_PING_SECONDS: Final = 15.0
_KEPT: Final = 8
_SHARED_BYTES: Final = 16 << 20
_SHARED_SECONDS: Final = 2.0


class ChangeFeed:
    """Changes of a run or of one of its seeds. Viewers that ask for the same news at the same time share one answer."""

    def __init__(self, read: ReadChanges, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._read = read
        self._clock = clock
        self._lock = anyio.Lock()
        self._answers: dict[str, tuple[float, RunChanges]] = {}
        self._latest = (float("-inf"), "")

    async def after(self, cursor: str) -> RunChanges:
        """Return the changes after a cursor, at most `POLL_SECONDS` old."""
        async with self._lock:
            made, known = self._answers.get(cursor, (float("-inf"), None))
            if known is None or self._clock() - made >= POLL_SECONDS * 0.9:
                known = await self._read(cursor)
                self._answers.pop(cursor, None)
                self._answers[cursor] = self._clock(), known
                self._latest = self._clock(), known.cursor
                while len(self._answers) > _KEPT:
                    del self._answers[next(iter(self._answers))]
            return known

    @property
    def state(self) -> str | None:
        """State that viewers are told of at present; `None`: nobody watches."""
        made, cursor = self._latest
        return cursor if self._clock() - made < 2 * POLL_SECONDS else None


class _SharedAnswer(NamedTuple):
    lock: anyio.Lock
    body: list[bytes]


class SharedAnswers:
    """Answers that viewers of the same state of a run share: after each change, all of them ask for the same paths.

    An answer is read after its state was seen, so it holds all that a viewer was told of; the news of what it lacks comes later.
    """

    def __init__(self, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._answers: dict[tuple[str, str, int], _SharedAnswer] = {}

    async def load(self, path: str, state: str | None, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer of a path.

        :param state: state of its run; `None`: unknown, so the answer is not shared.
        """
        if state is None:
            return await read()
        # What changes without news, such as usage, is shared for seconds only.
        key = path, state, int(self._clock() / _SHARED_SECONDS)
        shared = self._answers.setdefault(key, _SharedAnswer(anyio.Lock(), []))
        async with shared.lock:
            if not shared.body:
                try:
                    shared.body.append(await read())
                finally:
                    self._forget()
        return shared.body[0]

    def _forget(self) -> None:
        """Forget the oldest answers beyond the limit."""
        size = sum(len(part) for answer in self._answers.values() for part in answer.body)
        current = int(self._clock() / _SHARED_SECONDS)
        for key, answer in list(self._answers.items()):
            if key[2] != current or size > _SHARED_BYTES or not answer.body:
                size -= sum(map(len, answer.body))
                del self._answers[key]


async def change_events(feed: ChangeFeed, cursor: str, closing: anyio.Event) -> AsyncGenerator[bytes]:
    """Yield server-sent events: `change` with the JSON of the changes, `trouble` while the run can't be read.

    The id of an event is the cursor, so a browser that connects again misses nothing.

    :param cursor: state that the viewer knows; empty: the present one.
    :param closing: ends the events.
    """
    # The first bytes are sent when the cursor is known: what is committed after them is never missed.
    silent, in_trouble = _PING_SECONDS, False
    while not closing.is_set():
        event = b""
        try:
            changes = await feed.after(cursor)
        except (AgentFlowError, OSError, KeyError) as error:
            if not in_trouble:
                line = str(error) if isinstance(error, AgentFlowError) else error_line(error)
                event = _event("trouble", "", msgspec.json.encode({"error": line}))
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
        with anyio.move_on_after(POLL_SECONDS):
            await closing.wait()
        silent += POLL_SECONDS


def _event(name: str, cursor: str, data: bytes) -> bytes:
    # JSON has no line feeds, and neither has a cursor.
    identity = b"id: " + cursor.encode() + b"\n" if cursor else b""
    return b"event: " + name.encode() + b"\n" + identity + b"data: " + data + b"\n\n"
