"""Journal pages in memory."""

import asyncio

from agentflow.journal import Page, Writing

__all__ = ["SlowDisk", "page_over", "written"]


def page_over(entries: dict[str, bytes]) -> Page:
    """Return a page with these entries; new ones are added to them."""

    async def write(key: str, body: bytes) -> Writing:
        entries[key] = body
        return written()

    return Page(entries, write)


def written() -> Writing:
    """Return once it is on disk."""
    done: Writing = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class SlowDisk:
    """Page whose entries reach the disk only on request."""

    def __init__(self) -> None:
        self.writing: list[Writing] = []
        """Entries in flight."""
        self._quick = False
        self.page = Page({}, self._write)
        """The page."""

    async def _write(self, key: str, body: bytes) -> Writing:
        self.writing.append(written() if self._quick else asyncio.get_running_loop().create_future())
        return self.writing[-1]

    def catch_up(self) -> None:
        """Complete all entries, now and in the future."""
        self._quick = True
        for one in self.writing:
            if not one.done():
                one.set_result(None)
