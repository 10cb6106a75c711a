"""A session's browser context and its tabs."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypedDict

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._schemas import MAX_URL_CHARS
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

    from mcp_servers.browser._chromium import BrowserProcess
    from mcp_servers.browser._schemas import DownloadInfo
    from mcp_servers.browser._settings import BrowserSettings


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
MAX_MESSAGE_CHARS = 2_000
CLOSE_SECONDS = 5
_AWAITED = frozenset({"document", "stylesheet", "script", "xhr", "fetch"})


class MediaFeatures(TypedDict, total=False):
    """Emulated media features; `null` clears one."""

    color_scheme: Literal["light", "dark", "null"]
    """prefers-color-scheme."""
    reduced_motion: Literal["reduce", "no-preference", "null"]
    """prefers-reduced-motion."""
    forced_colors: Literal["active", "none", "null"]
    """forced-colors."""
    contrast: Literal["more", "no-preference", "null"]
    """prefers-contrast."""
    media: Literal["screen", "print", "null"]
    """CSS media type."""


@dataclass(frozen=True, slots=True)
class ConsoleEntry:
    """One message of the console."""

    level: Level
    text: str
    """Message text and its source location."""
    epoch: int
    """Number of main navigations of the tab at that time."""


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One request of a page."""

    number: int
    """Number of the request within the page, from 1."""
    request: Request


class Tab:
    """One tab. It records console messages, requests, dialogs and downloads of its page, in bounded numbers."""

    def __init__(self, page: Page, records: int) -> None:
        self.page = page
        self.dialog: Dialog | None = None
        self.chooser: FileChooser | None = None
        self.crashed = False
        """The page's process has crashed."""
        self.console: deque[ConsoleEntry] = deque(maxlen=records)
        self.requests: deque[RequestEntry] = deque(maxlen=records)
        """Requests since the last main navigation."""
        self.downloads: list[Download] = []
        """Downloads that have not been reported yet."""
        self.errors: list[str] = []
        """Errors that have not been reported yet."""
        self.epoch = 0
        """Counts main navigations."""
        self.names = RefNames()
        """Element names known to the client."""
        self.media: MediaFeatures = {}
        self.failed_navigation: Request | None = None
        """Last failed request of a main navigation."""
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
        """A dialog or a file chooser is open."""
        return self.dialog is not None or self.chooser is not None

    async def until_blocked(self) -> None:
        """Wait for a dialog or a file chooser."""
        if not self.is_blocked:
            await self._blocked.wait()

    async def until_navigated(self, epoch: int) -> None:
        """Wait for a main navigation after number `epoch`."""
        while self.epoch <= epoch:
            await self._navigated.wait()

    async def until_download(self) -> None:
        """Wait for a download to start."""
        if not self.downloads:
            self._download_came = anyio.Event()
            await self._download_came.wait()

    def unblocked(self) -> None:
        """Note that the dialog or file chooser was answered."""
        self.dialog = self.chooser = None

    def _on_console(self, message: ConsoleMessage) -> None:
        level = _LEVEL_OF.get(message.type, "info")
        location = message.location
        source = f"{location['url']}:{location['lineNumber']}" if location.get("url") else ""
        text = f"[{level}] {message.text[:MAX_MESSAGE_CHARS]}" + (f" @ {source}" if source else "")
        self._log(level, text)

    def _on_error(self, error: PageError) -> None:
        self._log("error", f"[error] {error.name}: {error.message}"[:MAX_MESSAGE_CHARS])

    def _log(self, level: Level, text: str) -> None:
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
        self._wake_blocked()

    def _on_chooser(self, chooser: FileChooser) -> None:
        self.chooser = chooser
        self._wake_blocked()

    def _wake_blocked(self) -> None:
        # A navigation closes a file chooser, so the event must not stay set.
        self._blocked.set()
        self._blocked = anyio.Event()

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
        # A worker's request has no frame, and a new page's frame may not exist yet.
        return False


class BrowserState:
    """Browser context of one session, created on first use and shared with no other session."""

    def __init__(self, engine: BrowserProcess, settings: BrowserSettings) -> None:
        self.process = engine
        self.settings = settings
        self.lock = anyio.Lock()
        """Held by the running call: only one acts at a time."""
        self.context: BrowserContext | None = None
        """Playwright's context, if created."""
        self.tabs: list[Tab] = []
        """Tabs in the order in which they were opened."""
        self.current: Tab | None = None
        """Tab that the tools act on."""
        self.viewport = settings.viewport
        """Width and height of the pages in pixels."""
        self.offline = False
        self.files = 0
        """Number of files named automatically."""
        self.downloaded: list[DownloadInfo] = []
        """Downloads to report with the next result."""
        self.notes: list[str] = []
        """Notes to report with the next result."""
        self.pending: set[Request] = set()
        """Requests in progress, in all tabs, including tabs that are being opened."""
        self._changed = anyio.Event()
        self._ignoring = False
        self._surplus: list[Page] = []

    async def tab(self) -> Tab:
        """Return the current tab; open one if there is none.

        :raises ToolFailure: `unavailable`, once, if the browser has crashed since the last call.
        """
        await self._check_alive()
        if self.current is not None:
            return self.current
        await self.process.browser()
        # The browser is running, so the package is installed and loaded.
        from playwright.async_api import Error

        try:
            return await self.open_tab()
        except Error:
            # The browser crashed; its pages can be gone before it is known to be.
            raise await self._crashed() from None

    async def open_tab(self) -> Tab:
        """Open a tab and make it the current one.

        :raises ToolFailure: `denied`, if there are too many.
        """
        if len(self.tabs) >= self.settings.tabs:
            message = f"all {self.settings.tabs} tabs are open: close one with browser_tabs."
            raise ToolFailure(ErrorKind.DENIED, message)
        context = await self.ensure_context()
        with self.ignoring_new_pages():
            page = await context.new_page()
        tab = self._tab_of(page)
        assert tab is not None
        self.current = tab
        return tab

    async def ensure_context(self, storage: StorageState | None = None) -> BrowserContext:
        """Return the context; create it if there is none."""
        if self.context is None:
            browser = await self.process.browser()
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
        """Wait for the documents, styles, scripts and data requests that started after `before`."""
        while any(request.resource_type in _AWAITED for request in self.pending - before):
            changed = self._changed
            await changed.wait()

    async def close_surplus(self) -> None:
        """Close the tabs beyond the limit."""
        surplus, self._surplus = self._surplus, []
        for page in surplus:
            with anyio.move_on_after(CLOSE_SECONDS):
                await page.close()

    async def close_tab(self, tab: Tab) -> None:
        """Close a tab; if it was the current one, the tab before it becomes current."""
        with anyio.move_on_after(CLOSE_SECONDS):
            await tab.page.close()
        self._forget(tab)

    async def close(self) -> None:
        """Close the context with its tabs and storage. The next use creates a new one."""
        context, self.context = self.context, None
        self.tabs.clear()
        self.pending.clear()
        self.current = None
        if context is None:
            return
        from playwright.async_api import Error

        # A crashed browser has no contexts.
        with contextlib.suppress(Error), anyio.move_on_after(CLOSE_SECONDS):
            await context.close()

    @contextlib.contextmanager
    def ignoring_new_pages(self) -> Generator[None]:
        """Ignore pages that open and close inside the block: reading the storage opens some."""
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
        """The browser of this context has crashed."""
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
            message = f"the page at {crashed.page.url[:MAX_URL_CHARS]} has crashed and its tab was closed. Open it again, or another page."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)

    async def _crashed(self) -> ToolFailure:
        await self.close()
        message = (
            "the browser has crashed and this session's pages are lost. The next call starts a new browser."
        )
        return ToolFailure(ErrorKind.UNAVAILABLE, message)

    def _on_page(self, page: Page) -> None:
        if self._ignoring or self._tab_of(page) is not None:
            return
        if len(self.tabs) >= self.settings.tabs:
            self._surplus.append(page)
            self.notes.append(
                f"The page opened more than the {self.settings.tabs} allowed tabs; the new one was closed."
            )
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
        index = self.tabs.index(tab)
        self.tabs.remove(tab)
        # Requests of a closed page are never answered.
        self.pending.clear()
        self._change()
        if self.current is tab:
            self.current = self.tabs[max(index - 1, 0)] if self.tabs else None
