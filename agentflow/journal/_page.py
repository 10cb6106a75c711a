"""A seed's page of the journal: everything that was done for it, each thing once."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

__all__ = ["Page"]

T = TypeVar("T")


class Page:
    """Results by key, written once and never changed.

    Growing and synthesis are deterministic but for their effects: model calls and actions. Each effect has a key that
    follows from its place in the tree, and its result is written here before anything builds on it. So whoever dies is
    continued by doing the same again: what stands here is not done twice.
    """

    def __init__(self, entries: Mapping[str, bytes], write: Callable[[str, bytes], Awaitable[None]]) -> None:
        """Open it.

        :param entries: what stands on it.
        :param write: puts one entry on disk; returns once it is there.
        """
        self._entries = dict(entries)
        self._write = write

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def keys(self) -> Iterator[str]:
        """All keys, in the order in which they were written."""
        return iter(self._entries)

    def section(self, name: str) -> "Page":
        """A part of it, with keys of its own."""
        start = f"{name}/"
        held = {key.removeprefix(start): body for key, body in self._entries.items() if key.startswith(start)}

        async def write(key: str, body: bytes) -> None:
            await self._write(start + key, body)
            self._entries[start + key] = body

        return Page(held, write)

    def recall(self, key: str, kind: type[T]) -> T | None:
        """What stands under that key."""
        body = self._entries.get(key)
        return None if body is None else msgspec.json.decode(body, type=kind)

    async def record(self, key: str, value: Any) -> None:  # noqa: ANN401 - whatever msgspec can write
        """Write a result; returns once it is on disk.

        :raises RunStopped: if it can't be written.
        """
        body = msgspec.json.encode(value)
        await self._write(key, body)
        self._entries[key] = body

    async def once(self, key: str, kind: type[T], make: Callable[[], Awaitable[T]]) -> T:
        """What stands under that key; if nothing does, what `make` gives, once it is written."""
        known = self.recall(key, kind)
        if known is None:
            known = await make()
            await self.record(key, known)
        return known
