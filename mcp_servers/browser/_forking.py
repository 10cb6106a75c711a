"""How a session's pages are copied: the same storage, the same addresses, the same fields; then the two are compared."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._devtools import attached, devtools
from mcp_servers.browser._looking import snapshot_of
from mcp_servers.browser._navigation import emulate
from mcp_servers.browser._page_state import KEEP_SESSION_STORAGE, READ, READ_SESSION_STORAGE, SCROLL, WRITE

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page, Route

    from mcp_servers.browser._state import BrowserState
    from mcp_servers.browser._tab import Tab

__all__ = ["fork_state"]

MOST_PAGES_BACK = 30
COMPARE_SECONDS = 2
COMPARE_EVERY = 0.1
_BLANK = "about:blank"


@dataclass(frozen=True, slots=True)
class _History:
    """The addresses that a tab has been to."""

    urls: list[str]
    """All of them, the oldest first."""
    current: int
    """Where it is among them."""


async def fork_state(state: BrowserState, copy: BrowserState) -> tuple[str, ...]:
    """Make `copy` like `state`.

    :return: one line for each thing that could not be carried.
    :raises ToolFailure: `cannot_fork`, while a dialog is open, or the browser has crashed.
    """
    copy.viewport, copy.offline, copy.files = state.viewport, state.offline, state.files
    if state.context is None:
        return ()
    from playwright.async_api import Error

    for tab in state.tabs:
        if tab.dialog is not None:
            message = f"a dialog is open on {tab.page.url}: answer it with browser_handle_dialog first."
            raise ToolFailure(ErrorKind.CANNOT_FORK, message)
    left_behind: list[str] = []
    try:
        with state.ignoring_new_pages():
            storage = await state.context.storage_state(indexed_db=True)
        await copy.opened(storage)
        for index, tab in enumerate(state.tabs):
            lines = await _copy_tab(state, tab, copy)
            left_behind += [f"tab {index} ({tab.page.url}): {line}" for line in lines]
    except Error as error:
        message = f"the pages can't be copied: {error.message.splitlines()[0]}"
        raise ToolFailure(ErrorKind.CANNOT_FORK, message) from None
    if state.current is not None and copy.tabs:
        copy.current = copy.tabs[state.tabs.index(state.current)]
    return tuple(left_behind)


async def _copy_tab(state: BrowserState, tab: Tab, copy: BrowserState) -> list[str]:
    """Open the same page in the copy, and bring it to where this one is."""
    lines: list[str] = []
    if tab.crashed:
        await copy.open_tab()
        return ["its page has crashed"]
    if tab.chooser is not None:
        lines.append("the open file chooser")
    if tab.downloads:
        lines.append("downloads under way")
    known = await snapshot_of(tab)
    frames = [await _read(frame) for frame in tab.page.frames]
    history = await _history_of(tab.page)
    storage = [await _session_storage(frame) for frame in tab.page.frames]
    new = await copy.open_tab()
    new.media = dict(tab.media)
    if new.media:
        await emulate(new)
    await _go_the_same_way(new.page, history, KEEP_SESSION_STORAGE % json.dumps(dict(storage)))
    with anyio.move_on_after(state.settings.settle_seconds):
        await copy.until_settled(frozenset())
    missing = await _write(new.page, WRITE, frames)
    with anyio.move_on_after(state.settings.settle_seconds):
        await copy.until_settled(frozenset())
    await _write(new.page, SCROLL, frames)
    files = sum(cast("int", frame["files"]) for frame in frames if frame)
    if files:
        lines.append(f"{files} chosen files")
    difference = await _align(new, known)
    if difference:
        lines.append(f"the page looks different after it was loaded again, first at {difference!r}")
    elif missing:
        lines.append(f"{missing} fields are not where they were")
    new.console.extend(tab.console)
    new.errors.clear()
    return lines


async def _history_of(page: Page) -> _History:
    async with devtools(page) as ask:
        found = await ask("Page.getNavigationHistory")
    urls = [cast("str", entry["url"]) for entry in found["entries"]]
    current = cast("int", found["currentIndex"])
    first = max(current - MOST_PAGES_BACK, 0)
    return _History(urls[first : current + MOST_PAGES_BACK + 1], current - first)


async def _go_the_same_way(page: Page, history: _History, script: str) -> None:
    """Open the last address as the last of the same addresses; those before are not asked for until somebody goes back."""
    from playwright.async_api import Error

    async with await page.add_init_script(script):
        if (
            history.urls in ([_BLANK], [_BLANK, history.urls[-1]])
            and history.current == len(history.urls) - 1
        ):
            if history.urls[-1] != _BLANK:
                # A page that can't be opened shows the same error again.
                with contextlib.suppress(Error):
                    await page.goto(history.urls[-1])
            return
        await page.route("**/*", _blank)
        await _visit(page, history)
        await page.unroute("**/*", _blank)
        with contextlib.suppress(Error):
            await page.reload()


async def _visit(page: Page, history: _History) -> None:
    from playwright.async_api import Error

    for index, url in enumerate(history.urls):
        if index or url != _BLANK:
            with contextlib.suppress(Error):
                await page.goto(url, wait_until="commit")
            if not index:
                # A new tab begins blank; this one did not.
                async with devtools(page) as ask:
                    await ask("Page.resetNavigationHistory")
    for _ in range(len(history.urls) - 1 - history.current):
        await attached(lambda: page.go_back(wait_until="commit"))


async def _blank(route: Route) -> None:
    await route.fulfill(status=200, content_type="text/html", body="")


async def _read(frame: Frame) -> dict[str, Any]:
    from playwright.async_api import Error

    try:
        return cast("dict[str, Any]", await frame.evaluate(READ))
    except Error:
        # A frame that shows no document, or is just going elsewhere, has no state.
        return {}


async def _session_storage(frame: Frame) -> tuple[str, list[list[str]]]:
    from playwright.async_api import Error

    try:
        origin, entries = cast("tuple[str, list[list[str]]]", await frame.evaluate(READ_SESSION_STORAGE))
    except Error:
        return "", []
    return origin, entries


async def _write(page: Page, script: str, frames: list[dict[str, Any]]) -> int:
    """Write the states of frames into those of the page, which come in the same order; say what had no place."""
    from playwright.async_api import Error

    missing = 0
    for frame, state in zip(page.frames, frames, strict=False):
        if state:
            try:
                missing += cast("int | None", await frame.evaluate(script, state)) or 0
            except Error:
                missing += len(state["fields"])
    return missing


async def _align(tab: Tab, known: str) -> str:
    """Call the elements as the parent does; where the pages stay different, the first line that differs."""
    difference = ""
    with anyio.move_on_after(COMPARE_SECONDS):
        while True:
            real = await tab.page.aria_snapshot(mode="ai")
            difference = tab.names.align(known, real)
            if not difference:
                break
            # The parent had more time to become what it is.
            await anyio.sleep(COMPARE_EVERY)
    return difference
