"""Actions on a page: one at a time, stopped by dialogs, and followed by a wait until the page has settled."""

from __future__ import annotations

import contextlib
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._files import collect_downloads
from mcp_servers.browser._snapshots import is_ref, page_state
from mcp_servers.browser._state import BrowserState
from mcp_servers.core._addresses import http_target

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from playwright.async_api import Error, Locator, Page, Request

    from mcp_servers.browser._schemas import PageState
    from mcp_servers.browser._state import Tab
    from mcp_servers.core._call import CallContext
    from mcp_servers.core._session import Session

__all__ = [
    "act",
    "attached",
    "devtools",
    "locate",
    "look",
    "navigation_failure",
    "stop_scripts",
    "unless_blocked",
]

T = TypeVar("T")
_CHANGING = "Not attached to an active page"
_LONGEST_CHANGE = 5
_PAUSE = 0.02
LONGEST_MESSAGE = 400
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BREATHE = "() => new Promise(done => setTimeout(done, 50))"
PATIENCE = 2


async def attached(work: Callable[[], Awaitable[T]]) -> T:
    """Do it once there is somebody to do it: while a page changes its process, Chromium refuses whatever is about its history.

    :raises playwright.async_api.Error: what else it says; or that, if the change takes seconds.
    """
    from playwright.async_api import Error

    with anyio.move_on_after(_LONGEST_CHANGE):
        while True:
            try:
                return await work()
            except Error as error:
                if _CHANGING not in error.message:
                    raise
            await anyio.sleep(_PAUSE)
    return await work()


@asynccontextmanager
async def devtools(page: Page) -> AsyncGenerator[Callable[..., Awaitable[dict[str, Any]]]]:
    """A line to the page: call it with a method and its parameters."""
    from playwright.async_api import Error

    line = await page.context.new_cdp_session(page)
    send = cast("Callable[[str, dict[str, object]], Awaitable[dict[str, Any]]]", cast("Any", line).send)

    async def ask(method: str, **parameters: object) -> dict[str, Any]:
        return await attached(lambda: send(method, parameters))

    try:
        yield ask
    finally:
        # A page that has crashed lets nobody go.
        with contextlib.suppress(Error), anyio.move_on_after(1, shield=True):
            await line.detach()


async def act(
    tool: str,
    session: Session,
    context: CallContext,
    action: Callable[[Tab], Awaitable[object]],
    *,
    answers: bool = False,
    pause: bool = True,
) -> PageState:
    """Do something to the current tab, wait until it has settled, and say how the page is then.

    :param answers: it answers a dialog or a file chooser, so it may go on while one waits.
    :param pause: the page gets a moment to do what it does right after an input, such as following a link.
    :raises ToolFailure: if it could not be done; with a page that waits for an answer, nothing else is.
    """
    state = session.get(BrowserState)
    async with state.turn:
        tab = await state.tab()
        if tab.is_blocked and not answers:
            raise _blocked(tool, tab)
        before = frozenset(state.pending)
        await _guarded(tool, state, tab, lambda: action(tab))
        # The action may have changed which tab is looked at.
        tab = state.current or tab
        if state.tabs:
            await _guarded(tool, state, tab, lambda: _settle(state, tab, before, pause=pause))
            await collect_downloads(state, session)
            await state.close_surplus()
        return await _guarded(tool, state, tab, lambda: page_state(state, session, context))


async def look(tool: str, session: Session, reading: Callable[[Tab], Awaitable[T]]) -> T:
    """Read something from the current tab.

    :raises ToolFailure: if it can't be read, or the page waits for an answer.
    """
    state = session.get(BrowserState)
    async with state.turn:
        tab = await state.tab()
        if tab.is_blocked:
            raise _blocked(tool, tab)
        return await _guarded(tool, state, tab, lambda: reading(tab))


async def locate(tab: Tab, target: str) -> Locator:
    """The element that is meant: by its name in a snapshot, or by a selector.

    :raises ToolFailure: `not_found`, if no element has that name.
    """
    if not is_ref(target):
        return tab.page.locator(target)
    place = tab.page.locator(f"aria-ref={tab.names.real_name(target)}")
    if not await place.count():
        message = (
            f"there is no element {target} on the page now: take a browser_snapshot to see what there is."
        )
        raise ToolFailure(ErrorKind.NOT_FOUND, message)
    return place


async def unless_blocked(tab: Tab, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do it; leave it to itself, with no result, when a dialog or file chooser comes up: the page waits for that."""
    done: list[T] = []
    failed: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            try:
                done.append(await work())
            except (
                Exception
            ) as error:  # boundary: raised again below, outside of the group that would wrap it
                failed.append(error)
            group.cancel_scope.cancel()

        group.start_soon(run)
        await tab.until_blocked()
        group.cancel_scope.cancel()
    if failed and not tab.is_blocked:
        raise failed[0]
    return done[0] if done else None


async def _settle(state: BrowserState, tab: Tab, before: frozenset[Request], *, pause: bool) -> None:
    async def wait() -> None:
        from playwright.async_api import Error

        if pause:
            # A page that is on its way to another one can't be asked.
            with contextlib.suppress(Error), anyio.move_on_after(1):
                await tab.page.evaluate(_BREATHE)
        with anyio.move_on_after(state.settings.settle_seconds):
            await state.until_settled(before)

    await unless_blocked(tab, wait)


async def _guarded(tool: str, state: BrowserState, tab: Tab, work: Callable[[], Awaitable[T]]) -> T:
    """Do it; what Playwright raises becomes a failure of one line."""
    from playwright.async_api import Error

    try:
        return await work()
    except Error as error:
        raise _failure(tool, state, tab, error) from None


def _failure(tool: str, state: BrowserState, tab: Tab, error: Error) -> ToolFailure:
    if state.is_lost:
        # The session learns that its pages are gone when it next asks for them.
        return ToolFailure(ErrorKind.UNAVAILABLE, f"{tool}: the browser has crashed.")
    if tab.crashed:
        return ToolFailure(ErrorKind.UNAVAILABLE, f"{tool}: the page has crashed.")
    kind = ErrorKind.TIMEOUT if error.name == "TimeoutError" else ErrorKind.FAILED
    return ToolFailure(kind, f"{tool}: {_line(error.message)}")


def navigation_failure(state: BrowserState, tab: Tab, url: str, error: Error) -> ToolFailure:
    """Why a page could not be opened: the proxy's reason, if it refused, else the browser's."""
    failed = tab.failed_navigation
    reached = failed.url if failed is not None else url
    try:
        target = http_target(reached)
        refusal = state.engine.proxy.why_not(target.host, target.port)
    except ToolFailure as refused:
        refusal = refused
    if refusal is not None:
        where = "" if reached == url else f" (it leads to {reached})"
        return ToolFailure(refusal.kind, f"browser_navigate: {url}{where}: {refusal.message}")
    kind = ErrorKind.TIMEOUT if error.name == "TimeoutError" else ErrorKind.FAILED
    return ToolFailure(kind, f"browser_navigate: {_line(error.message)}")


def _blocked(tool: str, tab: Tab) -> ToolFailure:
    if tab.dialog is not None:
        what = f"a dialog ({tab.dialog.type}: {tab.dialog.message[:200]!r}) is open: answer it with browser_handle_dialog."
    else:
        what = "the page waits for files: give them with browser_file_upload, without paths to give none."
    return ToolFailure(ErrorKind.FAILED, f"{tool}: {what}")


def _line(message: str) -> str:
    """Playwright's message on one line: what failed, and the last things that it met on the way."""
    head, _, log = _COLOURS.sub("", message).partition("Call log:")
    head = head.partition("\n    at ")[0]
    met = dict.fromkeys(line.strip(" -\t") for line in log.splitlines() if line.strip(" -\t"))
    last = [
        line
        for line in met
        if not line.startswith(("waiting ", "retrying", "attempting", "scrolling", "done"))
    ]
    shown = " ".join(head.split()).removesuffix(".")
    text = "; ".join([shown, *last[-3:]])
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " …"


async def stop_scripts(state: BrowserState, tab: Tab) -> None:
    """End what runs in the page; where the page does not come back, close its tab."""
    from playwright.async_api import Error

    back = False
    with anyio.move_on_after(2 * PATIENCE):
        with contextlib.suppress(Error):
            async with devtools(tab.page) as ask:
                await ask("Runtime.terminateExecution")
            with anyio.move_on_after(PATIENCE):
                await tab.page.evaluate("0")
                back = True
    if not back:
        await state.close_tab(tab)
        state.notes.append("The page did not come back, so its tab was closed.")
