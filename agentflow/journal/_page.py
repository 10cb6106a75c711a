"""A seed's page of the journal: everything that was done for it, each thing once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from agentflow.errors import RunStopped

__all__ = ["Page", "Write", "Writing"]

T = TypeVar("T")

BEHIND = 8
"""Results of a page that may be on their way to disk while work goes on."""

Writing: TypeAlias = asyncio.Future[None]
"""An entry on its way; done once it is on disk."""

Write: TypeAlias = Callable[[str, bytes], Awaitable[Writing | None]]
"""Begins to write an entry, after all that it was given before; gives nothing where it is on disk already."""


class Page:
    """Results by key, written once and never changed.

    Growing and synthesis are deterministic but for their effects: model calls and actions. Each effect has a key that
    follows from its place in the tree, and its result is written here. So whoever dies is continued by doing the same
    again: what stands here is not done twice.

    Results get to disk in the order in which they came, and whoever notes one goes on at once, unless too many are on their
    way: the newest may be lost by a crash, with what was done since. Whoever is about to change something that outlives the
    sandbox waits for all of them first (`settle`).
    """

    def __init__(self, entries: Mapping[str, bytes] | None = None, write: Write | None = None) -> None:
        """Open it.

        :param entries: what stands on it.
        :param write: writes what comes; none: it is remembered only.
        """
        self._entries = dict(entries or {})
        self._write = write
        self._under_way: deque[Writing] = deque()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def keys(self) -> Iterator[str]:
        """All keys, in the order in which they were written."""
        return iter(self._entries)

    def section(self, name: str) -> "Page":
        """A part of it, with keys of its own."""
        start = f"{name}/"
        held = {key.removeprefix(start): body for key, body in self._entries.items() if key.startswith(start)}

        async def write(key: str, body: bytes) -> Writing | None:
            writing = await self._begin(start + key, body)
            self._entries[start + key] = body
            return writing

        return Page(held, write)

    def recall(self, key: str, kind: type[T]) -> T | None:
        """What stands under that key."""
        body = self._entries.get(key)
        return None if body is None else msgspec.json.decode(body, type=kind)

    async def note(self, key: str, value: Any) -> None:  # noqa: ANN401 - whatever msgspec can write
        """Begin to write a result; returns once no more than `BEHIND` are on their way.

        :raises RunStopped: if one of those before it can't be written.
        """
        body = msgspec.json.encode(value)
        await self._begin(key, body)
        self._entries[key] = body
        if len(self._under_way) > BEHIND:
            await _end_of(self._under_way[-BEHIND - 1])

    async def record(self, key: str, value: Any) -> None:  # noqa: ANN401 - whatever msgspec can write
        """Write a result; returns once it is on disk.

        :raises RunStopped: if it can't be written.
        """
        body = msgspec.json.encode(value)
        if writing := await self._begin(key, body):
            try:
                await _end_of(writing)
            except RunStopped:
                # Whoever recorded it knows, and nothing was built on it.
                self._under_way.remove(writing)
                raise
        self._entries[key] = body

    async def settle(self) -> None:
        """Returns once all is on disk.

        :raises RunStopped: if the newest can't be written.
        """
        if self._under_way:
            await _end_of(self._under_way[-1])
        self._look()

    async def once(self, key: str, kind: type[T], make: Callable[[], Awaitable[T]]) -> T:
        """What stands under that key; if nothing does, what `make` gives, which is noted."""
        known = self.recall(key, kind)
        if known is None:
            known = await make()
            await self.note(key, known)
        return known

    async def _begin(self, key: str, body: bytes) -> Writing | None:
        self._look()
        writing = await self._write(key, body) if self._write else None
        if writing is not None:
            self._under_way.append(writing)
        return writing

    def _look(self) -> None:
        """Let go of what is on disk.

        :raises RunStopped: if something can't be written.
        """
        while self._under_way and self._under_way[0].done():
            self._under_way[0].result()
            self._under_way.popleft()


async def _end_of(writing: Writing) -> None:
    if writing.done():
        writing.result()
        return
    # What is written down has happened: who is cancelled now must not make it undone.
    await asyncio.shield(writing)
