"""How a page looks to who uses it: its snapshot, and what came up meanwhile."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agentflow.actors import together
from mcp_servers.browser._results import Dialog, PageState, TabInfo
from mcp_servers.core._running import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from playwright.async_api import Dialog as OpenDialog

    from mcp_servers.browser._state import BrowserState
    from mcp_servers.browser._tab import Tab
    from mcp_servers.core._context import CallContext
    from mcp_servers.core._session import Session

__all__ = ["page_state", "snapshot_of", "tab_infos", "title_of", "with_title"]

MOST_ERRORS = 20
LONGEST_ERROR = 300
LONGEST_TITLE = 500
LONGEST_URL = 2_000
SNAPSHOT_SECONDS = 15


async def page_state(
    state: BrowserState,
    session: Session,
    context: CallContext,
    *,
    snapshot: bool = True,
    text: str | None = None,
    title: str | None = None,
) -> PageState:
    """The current tab now; what had not been told of it is told with that.

    :param text: the snapshot, if it was taken already.
    :param title: the title, if it is known already.
    """
    tab = state.current
    if tab is None:
        return _nothing(state)
    dialog = tab.dialog
    if text is None and snapshot and not tab.is_blocked and not tab.crashed:
        text, title = await with_title(tab, snapshot_of)
    if text is not None:
        text = shown(text, "snapshot.txt", state.settings.snapshot_characters, session, context)
    errors, tab.errors = tab.errors, []
    notes, state.notes = state.notes, []
    downloads, state.downloaded = state.downloaded, []
    return PageState(
        url=tab.page.url[:LONGEST_URL],
        title=await title_of(tab) if title is None else title,
        snapshot=text,
        tabs=await tab_infos(state) if len(state.tabs) > 1 else [],
        dialog=_told(dialog) if dialog else None,
        file_chooser=tab.chooser is not None,
        downloads=downloads,
        console=[error[:LONGEST_ERROR] for error in errors[:MOST_ERRORS]],
        note=" ".join(notes),
    )


async def snapshot_of(tab: Tab, *, depth: int | None = None, boxes: bool | None = None) -> str:
    """The page as a list, with the names that its users know."""
    text = await tab.page.aria_snapshot(mode="ai", depth=depth, boxes=boxes, timeout=SNAPSHOT_SECONDS * 1000)
    return tab.names.shown(text)


async def with_title(tab: Tab, read: Callable[[Tab], Awaitable[str]]) -> tuple[str, str]:
    """What is read from the page, and its title, both asked for at once: each takes a way to the page and back."""
    text, title = await together((partial(read, tab), partial(title_of, tab)))
    return text, title


async def tab_infos(state: BrowserState) -> list[TabInfo]:
    """All tabs."""
    return [
        TabInfo(
            index=index,
            title=await title_of(tab),
            url=tab.page.url[:LONGEST_URL],
            current=tab is state.current,
        )
        for index, tab in enumerate(state.tabs)
    ]


async def title_of(tab: Tab) -> str:
    """The page's title; empty where the page can't be asked now."""
    from playwright.async_api import Error

    title = ""
    if not tab.is_blocked and not tab.crashed:
        # A page that is just going elsewhere has none.
        with contextlib.suppress(Error), anyio.move_on_after(1):
            title = (await tab.page.title())[:LONGEST_TITLE]
    return title


def _told(dialog: OpenDialog) -> Dialog:
    return Dialog(
        type=dialog.type,
        message=dialog.message[:LONGEST_URL],
        default=dialog.default_value[:LONGEST_URL],
    )


def _nothing(state: BrowserState) -> PageState:
    notes, state.notes = state.notes, []
    downloads, state.downloaded = state.downloaded, []
    return PageState(
        url="",
        title="",
        snapshot=None,
        tabs=[],
        dialog=None,
        file_chooser=False,
        downloads=downloads,
        console=[],
        note=" ".join(["No tab is open.", *notes]),
    )
