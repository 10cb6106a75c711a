"""Actions on a page: one at a time, stopped by dialogs, and followed by a wait until the page has settled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._files import collect_downloads
from mcp_servers.browser._schemas import MAX_URL_CHARS
from mcp_servers.browser._snapshots import is_ref, page_state
from mcp_servers.browser._state import BrowserState
from runtimes.egress import http_target

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Error, Frame, Locator, Page, Request

    from mcp_servers.browser._schemas import PageState
    from mcp_servers.browser._state import Tab
    from mcp_servers.core._call import CallContext
    from mcp_servers.core._sessions import Session


T = TypeVar("T")
_SWAPPING = "Not attached to an active page"
_SWAP_SECONDS = 5
_RETRY_SECONDS = 0.02
MAX_MESSAGE_CHARS = 400
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WAIT_50_MS = "() => new Promise(done => setTimeout(done, 50))"
STOP_SECONDS = 2
_NO_HANDLERS: Mapping[str, Callable[[dict[str, Any]], None]] = {}


async def retry_while_swapping(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` again while the page is moving to another process, during which Chromium refuses history commands.

    :raises playwright.async_api.Error: any other error, or this one after five seconds.
    """
    from playwright.async_api import Error

    with anyio.move_on_after(_SWAP_SECONDS):
        while True:
            try:
                return await work()
            except Error as error:
                if _SWAPPING not in error.message:
                    raise
            await anyio.sleep(_RETRY_SECONDS)
    return await work()


class _DevTools(Protocol):
    """Playwright's DevTools session, with the types that its stub omits."""

    async def send(self, method: str, params: dict[str, object]) -> dict[str, Any]: ...


DevToolsMethods = Callable[..., Awaitable[dict[str, Any]]]
"""Function that calls a DevTools method by its name, with parameters."""


@asynccontextmanager
async def devtools_session(
    target: Page | Frame, on: Mapping[str, Callable[[dict[str, Any]], None]] = _NO_HANDLERS
) -> AsyncGenerator[DevToolsMethods]:
    """Open a DevTools session to a page, or to a frame with a process of its own.

    :param on: handlers of events, by their names.
    """
    from playwright.async_api import Error, Page

    context = (target if isinstance(target, Page) else target.page).context
    line = await context.new_cdp_session(target)
    for event, handler in on.items():
        line.on(event, handler)
    try:
        yield partial(_ask, line)
    finally:
        # Detaching from a crashed page fails or hangs.
        with contextlib.suppress(Error), anyio.move_on_after(1, shield=True):
            await line.detach()


async def _ask(line: _DevTools, method: str, **parameters: object) -> dict[str, Any]:
    return await retry_while_swapping(lambda: line.send(method, parameters))


async def act(
    tool: str,
    session: Session,
    context: CallContext,
    action: Callable[[Tab], Awaitable[object]],
    *,
    answers: bool = False,
    pause: bool = True,
) -> PageState:
    """Act on the current tab, wait until the page has settled, and return its state.

    :param answers: the action answers a dialog or a file chooser, so it may run while one is open.
    :param pause: wait 50 ms for what a page does right after an input, such as following a link.
    :raises ToolFailure: if the action failed, or the page is waiting for an answer.
    """
    state = session.get(BrowserState)
    async with state.lock:
        tab = await state.tab()
        if tab.is_blocked and not answers:
            raise _blocked(tool, tab)
        before = frozenset(state.pending)
        await _guarded(tool, state, tab, lambda: action(tab))
        # The action may have changed the current tab.
        tab = state.current or tab
        if state.tabs:
            await _guarded(tool, state, tab, lambda: _settle(state, tab, before, pause=pause))
            await collect_downloads(state, session)
            await state.close_surplus()
        return await _guarded(tool, state, tab, lambda: page_state(state, session, context))


async def read_page(tool: str, session: Session, reading: Callable[[Tab], Awaitable[T]]) -> T:
    """Read something from the current tab.

    :raises ToolFailure: if reading failed, or the page is waiting for an answer.
    """
    state = session.get(BrowserState)
    async with state.lock:
        tab = await state.tab()
        if tab.is_blocked:
            raise _blocked(tool, tab)
        return await _guarded(tool, state, tab, lambda: reading(tab))


async def act_on_tab(
    tool: str, session: Session, context: CallContext, action: Callable[[Tab], Awaitable[object]]
) -> PageState:
    """Act on the current tab until the action is done or a dialog opens, as in `act`."""
    return await act(tool, session, context, lambda tab: until_blocked_or_done(tab, lambda: action(tab)))


async def act_on_element(
    tool: str,
    session: Session,
    context: CallContext,
    target: str,
    action: Callable[[Locator], Awaitable[object]],
) -> PageState:
    """Act on an element until the action is done or a dialog opens, as in `act`.

    :param target: the element's ref in a snapshot, or a selector.
    """

    async def locate_and_act(tab: Tab) -> None:
        await action(await locate(tab, target))

    return await act_on_tab(tool, session, context, locate_and_act)


async def locate(tab: Tab, target: str) -> Locator:
    """Return the locator of an element, given by its ref in a snapshot or by a selector.

    :raises ToolFailure: `not_found`, if no element has that ref.
    """
    if not is_ref(target):
        return tab.page.locator(target)
    locator = tab.page.locator(f"aria-ref={tab.names.real_name(target)}")
    if not await locator.count():
        message = f"there is no element {target} on the page now: take a new browser_snapshot."
        raise ToolFailure(ErrorKind.NOT_FOUND, message)
    return locator


async def until_blocked_or_done(tab: Tab, work: Callable[[], Awaitable[T]]) -> T | None:
    """Run `work`, but stop waiting and return `None` when a dialog or file chooser opens, because the page then waits for it."""
    done: list[T] = []
    failed: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            try:
                done.append(await work())
            except Exception as error:  # boundary: raised again below, outside the group, which would wrap it
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
            # A page that is navigating can't be evaluated.
            with contextlib.suppress(Error), anyio.move_on_after(1):
                await tab.page.evaluate(_WAIT_50_MS)
        with anyio.move_on_after(state.settings.settle_seconds):
            await state.until_settled(before)

    await until_blocked_or_done(tab, wait)


async def _guarded(tool: str, state: BrowserState, tab: Tab, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; an error of Playwright becomes a one-line failure."""
    from playwright.async_api import Error

    try:
        return await work()
    except Error as error:
        raise _failure(tool, state, tab, error) from None


def _failure(tool: str, state: BrowserState, tab: Tab, error: Error) -> ToolFailure:
    if state.is_lost:
        # The next call reports that the session's pages are gone.
        return ToolFailure(ErrorKind.UNAVAILABLE, f"{tool}: the browser has crashed.")
    if tab.crashed:
        return ToolFailure(ErrorKind.UNAVAILABLE, f"{tool}: the page has crashed.")
    return _playwright_failure(tool, error)


def navigation_failure(state: BrowserState, tab: Tab, url: str, error: Error) -> ToolFailure:
    """Return the failure of a navigation: the proxy's reason if it refused the connection, else the browser's."""
    failed = tab.failed_navigation
    reached = failed.url if failed is not None else url
    try:
        target = http_target(reached)
        refusal = state.process.proxy.refusal(target.host, target.port)
    except ToolFailure as refused:
        refusal = refused
    if refusal is not None:
        where = "" if reached == url else f" (it leads to {reached[:MAX_URL_CHARS]})"
        return ToolFailure(refusal.kind, f"browser_navigate: {url}{where}: {refusal.message}")
    return _playwright_failure("browser_navigate", error)


def _blocked(tool: str, tab: Tab) -> ToolFailure:
    if tab.dialog is not None:
        what = f"a dialog ({tab.dialog.type}: {tab.dialog.message[:200]!r}) is open: answer it with browser_handle_dialog."
    else:
        what = "the page waits for files: call browser_file_upload; without paths it cancels."
    return ToolFailure(ErrorKind.FAILED, f"{tool}: {what}")


def _playwright_failure(tool: str, error: Error) -> ToolFailure:
    """Return the failure with Playwright's message on one line: the error and the last three steps of its call log."""
    head, _, log = _COLOURS.sub("", error.message).partition("Call log:")
    head = head.partition("\n    at ")[0]
    steps = dict.fromkeys(line.strip(" -\t") for line in log.splitlines() if line.strip(" -\t"))
    last = [
        line
        for line in steps
        if not line.startswith(("waiting ", "retrying", "attempting", "scrolling", "done"))
    ]
    text = "; ".join([" ".join(head.split()).removesuffix("."), *last[-3:]])
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[:MAX_MESSAGE_CHARS] + " …"
    kind = ErrorKind.TIMEOUT if error.name == "TimeoutError" else ErrorKind.FAILED
    return ToolFailure(kind, f"{tool}: {text}")


async def stop_scripts(state: BrowserState, tab: Tab) -> None:
    """Terminate the scripts that run in the page; close the tab if the page stays unresponsive."""
    from playwright.async_api import Error

    back = False
    with anyio.move_on_after(2 * STOP_SECONDS):
        with contextlib.suppress(Error):
            async with devtools_session(tab.page) as ask:
                await ask("Runtime.terminateExecution")
            with anyio.move_on_after(STOP_SECONDS):
                await tab.page.evaluate("0")
                back = True
    if not back:
        await state.close_tab(tab)
        state.notes.append("The page did not respond any more, so its tab was closed.")
