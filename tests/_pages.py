"""Pages that outlive who writes on them, without a journal."""

import asyncio

from agentflow.journal import Page, Writing

__all__ = ["SlowDisk", "page_over", "written"]


def page_over(entries: dict[str, bytes]) -> Page:
    """A page with these entries; what is written on it is added to them."""

    async def write(key: str, body: bytes) -> Writing:
        entries[key] = body
        return written()

    return Page(entries, write)


def written() -> Writing:
    """It is on disk."""
    done: Writing = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class SlowDisk:
    """A page none of whose entries gets to disk before it is told."""

    def __init__(self) -> None:
        self.writing: list[Writing] = []
        """Entries on their way."""
        self._quick = False
        self.page = Page({}, self._write)
        """The page."""

    async def _write(self, key: str, body: bytes) -> Writing:
        self.writing.append(written() if self._quick else asyncio.get_running_loop().create_future())
        return self.writing[-1]

    def catch_up(self) -> None:
        """All entries are on disk; those that come are there at once."""
        self._quick = True
        for one in self.writing:
            if not one.done():
                one.set_result(None)
