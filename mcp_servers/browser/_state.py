"""A session's browser context and its tabs."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._snapshots import RefNames

if TYPE_CHECKING:
    from collections.abc import Generator

    from playwright.async_api import (
        BrowserContext,
        ConsoleMessage,
        Dialog,
        Download,
        FileChooser,
        Frame,
        Page,
        Request,
        StorageState,
    )
    from playwright.async_api import Error as PageError

    from mcp_servers.browser._chromium import Engine
    from mcp_servers.browser._schemas import Downloaded
    from mcp_servers.browser._settings import BrowserSettings

__all__ = ["LEVELS", "BrowserState", "ConsoleEntry", "RequestEntry", "Tab"]

Level = Literal["error", "warning", "info", "debug"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "info", "debug")
"""The levels of console messages, the most severe first."""
_LEVEL_OF: Final[dict[str, Level]] = {
    "error": "error",
    "assert": "error",
    "warning": "warning",
    "debug": "debug",
    "trace": "debug",
}
LONGEST_MESSAGE = 2_000
CLOSE_SECONDS = 5
_AWAITED = frozenset({"document", "stylesheet", "script", "xhr", "fetch"})


@dataclass(frozen=True, slots=True)
class ConsoleEntry:
    """One message of the console."""

    level: Level
    """How severe it is."""
    text: str
    """The message, with its place in the source."""
    epoch: int
    """Which page it was: counts main navigations of the tab."""


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One request of a page."""

    number: int
    """What it is named by; starts at 1 with each page."""
    request: Request
    """The request."""


class Tab:
    """One tab. Listens to its page from the beginning; remembers a bounded number of things."""

    def __init__(self, page: Page, records: int) -> None:
        self.page = page
        """The page that it shows."""
        self.dialog: Dialog | None = None
        """A dialog that waits for an answer."""
        self.chooser: FileChooser | None = None
        """A file chooser that waits for files."""
        self.crashed = False
        """Its process has ended."""
        self.console: deque[ConsoleEntry] = deque(maxlen=records)
        """What the console said."""
        self.requests: deque[RequestEntry] = deque(maxlen=records)
        """What the page asked for since its last navigation."""
        self.downloads: list[Download] = []
        """Downloads that have not been reported yet."""
        self.errors: list[str] = []
        """Errors that have not been reported yet."""
        self.epoch = 0
        """Counts main navigations."""
        self.names = RefNames()
        """How its elements are called by its users."""
        self.media: dict[str, str] = {}
        """Media features that are emulated."""
        self.failed_navigation: Request | None = None
        """The last request for a whole page that failed."""
        self._number = 0
        self._blocked = anyio.Event()
        self._download_came = anyio.Event()
        self._navigated = anyio.Event()
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)
        page.on("requestfailed", self._on_failed)
        page.on("dialog", self._on_dialog)
        page.on("filechooser", self._on_chooser)
        page.on("download", self._on_download)
        page.on("framenavigated", self._on_navigated)
        page.on("domcontentloaded", self._on_new_document)
        page.on("crash", self._on_crash)

    @property
    def is_blocked(self) -> bool:
        """A dialog or a file chooser waits to be answered."""
        return self.dialog is not None or self.chooser is not None

    async def until_blocked(self) -> None:
        """Wait for a dialog or file chooser."""
        if not self.is_blocked:
            await self._blocked.wait()

    async def until_navigated(self, epoch: int) -> None:
        """Wait for a main navigation after that one."""
        while self.epoch <= epoch:
            await self._navigated.wait()

    async def until_download(self) -> None:
        """Wait for a download that is on its way."""
        if not self.downloads:
            self._download_came = anyio.Event()
            await self._download_came.wait()

    def unblocked(self) -> None:
        """It was answered."""
        self.dialog = self.chooser = None
        self._blocked = anyio.Event()

    def _on_console(self, message: ConsoleMessage) -> None:
        level = _LEVEL_OF.get(message.type, "info")
        place = message.location
        source = f"{place['url']}:{place['lineNumber']}" if place.get("url") else ""
        text = f"[{level}] {message.text[:LONGEST_MESSAGE]}" + (f" @ {source}" if source else "")
        self._say(level, text)

    def _on_error(self, error: PageError) -> None:
        self._say("error", f"[error] {error.name}: {error.message}"[:LONGEST_MESSAGE])

    def _say(self, level: Level, text: str) -> None:
        self.console.append(ConsoleEntry(level, text, self.epoch))
        if level == "error" and len(self.errors) < 20:
            self.errors.append(text)

    def _on_request(self, request: Request) -> None:
        if _is_main_navigation(request, self.page) and request.redirected_from is None:
            self.requests.clear()
            self._number = 0
        self._number += 1
        self.requests.append(RequestEntry(self._number, request))

    def _on_failed(self, request: Request) -> None:
        if _is_main_navigation(request, self.page):
            self.failed_navigation = request

    def _on_dialog(self, dialog: Dialog) -> None:
        self.dialog = dialog
        self._blocked.set()

    def _on_chooser(self, chooser: FileChooser) -> None:
        self.chooser = chooser
        self._blocked.set()

    def _on_download(self, download: Download) -> None:
        self.downloads.append(download)
        self._download_came.set()

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None:
            self.epoch += 1
            self._navigated.set()
            self._navigated = anyio.Event()
            self.chooser = None

    def _on_new_document(self, _: Page) -> None:
        self.names = RefNames()

    def _on_crash(self, _: Page) -> None:
        self.crashed = True


def _is_main_navigation(request: Request, page: Page) -> bool:
    from playwright.async_api import Error

    try:
        return request.is_navigation_request() and request.frame == page.main_frame
    except Error:
        # A worker's request has no frame, and that of a new page may not be there yet.
        return False


class BrowserState:
    """One session's context. Made at first need; nothing in it is shared with another session."""

    def __init__(self, engine: Engine, settings: BrowserSettings) -> None:
        self.engine = engine
        """Where the browser comes from."""
        self.settings = settings
        """The session's settings."""
        self.turn = anyio.Lock()
        """Held by the call that acts: a page has one pair of hands."""
        self.context: BrowserContext | None = None
        """The context, once there is one."""
        self.tabs: list[Tab] = []
        """Its tabs, in the order they were opened."""
        self.current: Tab | None = None
        """The tab that the tools act on."""
        self.viewport = settings.viewport
        """Width and height of the pages."""
        self.offline = False
        """The network is switched off."""
        self.files = 0
        """Counts files that were given a name here."""
        self.downloaded: list[Downloaded] = []
        """Downloads to tell of with the next result."""
        self.notes: list[str] = []
        """What to tell with the next result."""
        self.pending: set[Request] = set()
        """Requests that are under way, in all tabs and in those that are just opening."""
        self._changed = anyio.Event()
        self._ignoring = False
        self._surplus: list[Page] = []

    async def tab(self) -> Tab:
        """The current tab; a first one is opened where there is none.

        :raises ToolFailure: `unavailable`, once, if the browser has crashed since the last call.
        """
        await self._check_alive()
        if self.current is not None:
            return self.current
        await self.engine.browser()
        # Loaded by now, and known to be there.
        from playwright.async_api import Error

        try:
            return await self.open_tab()
        except Error:
            # The browser dies under it: its pages may be gone before it is known to be.
            raise await self._crashed() from None

    async def open_tab(self) -> Tab:
        """A new tab, which is then the current one.

        :raises ToolFailure: `denied`, if there are too many.
        """
        if len(self.tabs) >= self.settings.tabs:
            message = f"all {self.settings.tabs} tabs are open: close one with browser_tabs."
            raise ToolFailure(ErrorKind.DENIED, message)
        context = await self.opened()
        with self.ignoring_new_pages():
            page = await context.new_page()
        tab = self._tab_of(page)
        assert tab is not None
        self.current = tab
        return tab

    async def opened(self, storage: StorageState | None = None) -> BrowserContext:
        """The context, made now if there is none."""
        if self.context is None:
            browser = await self.engine.browser()
            context = await browser.new_context(
                storage_state=storage,
                viewport={"width": self.viewport[0], "height": self.viewport[1]},
                locale=self.settings.locale,
                timezone_id=self.settings.timezone,
                user_agent=self.settings.user_agent,
                accept_downloads=True,
                offline=self.offline,
            )
            context.set_default_timeout(self.settings.action_seconds * 1000)
            context.set_default_navigation_timeout(self.settings.navigation_seconds * 1000)
            context.on("page", self._on_page)
            context.on("request", self._on_request)
            context.on("requestfinished", self._on_done)
            context.on("requestfailed", self._on_done)
            self.context = context
        return self.context

    async def until_settled(self, before: frozenset[Request]) -> None:
        """Wait until what was asked for since then is there: pages' own text, styles, scripts and data."""
        while any(one.resource_type in _AWAITED for one in self.pending - before):
            changed = self._changed
            await changed.wait()

    async def close_surplus(self) -> None:
        """Close the tabs that are too many."""
        surplus, self._surplus = self._surplus, []
        for page in surplus:
            with anyio.move_on_after(CLOSE_SECONDS):
                await page.close()

    async def close_tab(self, tab: Tab) -> None:
        """Close it; the one before it becomes the current one."""
        with anyio.move_on_after(CLOSE_SECONDS):
            await tab.page.close()
        self._forget(tab)

    async def close(self) -> None:
        """Close the context with all its tabs and all it knows. The next use begins anew."""
        context, self.context = self.context, None
        self.tabs.clear()
        self.pending.clear()
        self.current = None
        if context is None:
            return
        from playwright.async_api import Error

        # Where the browser has died, the context has too.
        with contextlib.suppress(Error), anyio.move_on_after(CLOSE_SECONDS):
            await context.close()

    @contextlib.contextmanager
    def ignoring_new_pages(self) -> Generator[None]:
        """Pages that come up inside and are gone at the end are not the session's: reading the storage opens some."""
        self._ignoring = True
        try:
            yield
        finally:
            self._ignoring = False
            for page in self.context.pages if self.context else ():
                if self._tab_of(page) is None:
                    self._add(page)

    @property
    def is_lost(self) -> bool:
        """The browser has died under it."""
        if self.context is None:
            return False
        browser = self.context.browser
        return browser is None or not browser.is_connected()

    async def _check_alive(self) -> None:
        if self.is_lost:
            raise await self._crashed()
        if self.current is not None and self.current.crashed:
            crashed = self.current
            await self.close_tab(crashed)
            message = f"the page at {crashed.page.url} has crashed; its tab is closed. Open it again, or another one."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)

    async def _crashed(self) -> ToolFailure:
        await self.close()
        message = (
            "the browser has crashed, and this session's pages with it. The next call begins with a new one."
        )
        return ToolFailure(ErrorKind.UNAVAILABLE, message)

    def _on_page(self, page: Page) -> None:
        if self._ignoring or self._tab_of(page) is not None:
            return
        if len(self.tabs) >= self.settings.tabs:
            self._surplus.append(page)
            self.notes.append(f"The page opened one tab more than the {self.settings.tabs} that are allowed.")
            return
        self._add(page)
        self.notes.append("The page opened another tab.")

    def _on_request(self, request: Request) -> None:
        self.pending.add(request)
        self._change()

    def _on_done(self, request: Request) -> None:
        self.pending.discard(request)
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _add(self, page: Page) -> Tab:
        tab = Tab(page, self.settings.records)
        self.tabs.append(tab)
        page.on("close", lambda _: self._forget(tab))
        if self.current is None:
            self.current = tab
        return tab

    def _tab_of(self, page: Page) -> Tab | None:
        return next((tab for tab in self.tabs if tab.page == page), None)

    def _forget(self, tab: Tab) -> None:
        if tab not in self.tabs:
            return
        place = self.tabs.index(tab)
        self.tabs.remove(tab)
        # What a closed page asked for gets no answer any more.
        self.pending.clear()
        self._change()
        if self.current is tab:
            self.current = self.tabs[max(place - 1, 0)] if self.tabs else None
