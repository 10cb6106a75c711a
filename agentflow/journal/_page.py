"""Page of a seed in the journal: the result of each effect, once; errors about damaged records."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.errors import RunStopped, StopCause
from agentflow.telemetry import mark_spans

T = TypeVar("T")


def damaged_journal(shown: str, problem: str) -> RunStopped:
    """Return the error for a journal that lacks part of what was recorded.

    :param shown: its address.
    """
    remedy = "restore a copy of it, move it away to begin again, or name another"
    return RunStopped(StopCause.JOURNAL, f"{f'journal {shown}'.strip()}: {problem}; {remedy}")


def decode_record(body: bytes, kind: type[T], shown: str, record: str) -> T:
    """Return a record of a journal.

    :param shown: address of the journal.
    :param record: name of the record in errors.
    :raises RunStopped: if it is damaged.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except DECODE_ERRORS as error:
        problem = f"{record} is damaged ({decode_reason(error)}): it is lost, the rest can be read"
        raise damaged_journal(shown, problem) from error


BEHIND = 8
"""Number of results of a page that may be in flight to disk."""

Writing: TypeAlias = asyncio.Future[None]
"""Entry in flight; done once it is on disk."""

Write: TypeAlias = Callable[[str, bytes], Awaitable[Writing | None]]
"""Starts writing an entry after all earlier ones; returns `None` if it is already on disk."""


class Page:
    """Results by key, written once and never changed.

    Growth and synthesis are deterministic except for their effects: model calls and actions. The key of an effect follows
    from its position in the tree, and its result is stored here. To continue after a crash, run the same program again: an effect
    with a stored result is not repeated.

    Results are written asynchronously and in order; `record` waits only while more than `BEHIND` are in flight. A crash can
    lose the last few, together with everything that depended on them. Before changing something outside the sandbox, call
    `settle` to wait for all of them.
    """

    def __init__(
        self, entries: Mapping[str, bytes] | None = None, write: Write | None = None, journal: str = ""
    ) -> None:
        """:param entries: the stored entries.
        :param write: writes new entries; without it they stay in memory.
        :param journal: address of its journal, for errors.
        """
        self._entries = dict(entries or {})
        self._write = write
        self._journal = journal
        self._under_way: deque[Writing] = deque()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def keys(self) -> Iterator[str]:
        """All keys, in the order of writing."""
        return iter(self._entries)

    def section(self, name: str) -> "Page":
        """Return a part of the page with its own key prefix."""
        start = f"{name}/"
        held = {key.removeprefix(start): body for key, body in self._entries.items() if key.startswith(start)}

        async def write(key: str, body: bytes) -> Writing | None:
            writing = await self._begin(start + key, body)
            self._entries[start + key] = body
            return writing

        return Page(held, write, self._journal)

    def recall(self, key: str, kind: type[T]) -> T | None:
        """Return the result stored under a key.

        :raises RunStopped: if it is damaged.
        """
        body = self._entries.get(key)
        return None if body is None else decode_record(body, kind, self._journal, f"the record {key}")

    async def note(self, key: str, value: Any) -> None:  # noqa: ANN401 - whatever msgspec can write
        """Start writing a result; return once at most `BEHIND` results are in flight.

        :raises RunStopped: if an earlier result can't be written.
        """
        body = msgspec.json.encode(value)
        await self._begin(key, body)
        self._entries[key] = body
        if len(self._under_way) > BEHIND:
            await _end_of(self._under_way[-BEHIND - 1])

    async def record(self, key: str, value: Any) -> None:  # noqa: ANN401 - whatever msgspec can write
        """Write a result; return once it is on disk.

        :raises RunStopped: if it can't be written.
        """
        body = msgspec.json.encode(value)
        if writing := await self._begin(key, body):
            try:
                await _end_of(writing)
            except RunStopped:
                # The caller that recorded it gets the error, and nothing depends on it.
                self._under_way.remove(writing)
                raise
        self._entries[key] = body

    async def settle(self) -> None:
        """Wait until all results are on disk.

        :raises RunStopped: if the newest can't be written.
        """
        if self._under_way:
            await _end_of(self._under_way[-1])
        self._look()

    async def once(self, key: str, kind: type[T], make: Callable[[], Awaitable[T]]) -> T:
        """Return the result stored under a key; if there is none, record and return the result of `make`."""
        result = self.recall(key, kind)
        if result is None:
            with mark_spans(effect=key):
                result = await make()
            await self.note(key, result)
        return result

    async def _begin(self, key: str, body: bytes) -> Writing | None:
        self._look()
        writing = await self._write(key, body) if self._write else None
        if writing is not None:
            self._under_way.append(writing)
        return writing

    def _look(self) -> None:
        """Forget the entries that are on disk.

        :raises RunStopped: if one can't be written.
        """
        while self._under_way and self._under_way[0].done():
            self._under_way[0].result()
            self._under_way.popleft()


async def _end_of(writing: Writing) -> None:
    if writing.done():
        writing.result()
        return
    # A cancelled caller must not undo a result that was recorded.
    await asyncio.shield(writing)


class MemoryPage(Page):
    """A page without a journal: results are kept as objects, not encoded."""

    def __init__(self, results: dict[str, Any] | None = None, prefix: str = "") -> None:
        """:param results: results of the page that this is a section of.
        :param prefix: prefix of its keys there.
        """
        super().__init__()
        self._results: dict[str, Any] = {} if results is None else results
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._results

    def keys(self) -> Iterator[str]:
        """Return all keys in the order in which they were written."""
        return (key.removeprefix(self._prefix) for key in self._results if key.startswith(self._prefix))

    def section(self, name: str) -> Page:
        """Return the part of the page below a name."""
        return MemoryPage(self._results, f"{self._prefix}{name}/")

    def recall(self, key: str, kind: type[T]) -> T | None:
        """Return the result under a key."""
        del kind
        return self._results.get(self._prefix + key)

    async def note(self, key: str, value: Any) -> None:  # noqa: ANN401 - any result
        """Keep a result."""
        self._results[self._prefix + key] = value

    async def record(self, key: str, value: Any) -> None:  # noqa: ANN401 - any result
        """Keep a result."""
        await self.note(key, value)


class BranchPage(Page):
    """Page of one path of a program that branches, on a page that all paths share.

    The results of each branch are in a section of their own. A path reads the sections through which it came, and writes in
    the last one.
    """

    def __init__(self, shared: Page, sections: Sequence[Page] = ()) -> None:
        """:param shared: page with the sections of all branches.
        :param sections: sections of the path so far.
        """
        super().__init__()
        self._shared = shared
        self._sections = list(sections)

    def branch(self) -> "BranchPage":
        """Return the page of another path that continues from here."""
        return BranchPage(self._shared, self._sections)

    def enter(self, name: str) -> None:
        """Continue in the section of a branch."""
        self._sections.append(self._shared.section(name))

    def __contains__(self, key: str) -> bool:
        return any(key in section for section in self._sections)

    def keys(self) -> Iterator[str]:
        """Return all keys, section by section, in the order in which they were written."""
        return (key for section in self._sections for key in section.keys())  # noqa: SIM118 - a page is no mapping

    def section(self, name: str) -> Page:
        """Return the part of the newest section below a name."""
        return self._sections[-1].section(name)

    def recall(self, key: str, kind: type[T]) -> T | None:
        """Return the result under a key.

        :raises RunStopped: if it is damaged.
        """
        section = next((section for section in self._sections if key in section), None)
        return None if section is None else section.recall(key, kind)

    async def note(self, key: str, value: Any) -> None:  # noqa: ANN401 - any result
        """Start writing a result in the newest section."""
        await self._sections[-1].note(key, value)

    async def record(self, key: str, value: Any) -> None:  # noqa: ANN401 - any result
        """Write a result in the newest section; return once it is on disk."""
        await self._sections[-1].record(key, value)

    async def settle(self) -> None:
        """Wait until all results of the path are on disk."""
        for section in self._sections:
            await section.settle()
