"""One tab: its page, and what happened in it since somebody looked."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import anyio

from mcp_servers.browser._names import RefNames

if TYPE_CHECKING:
    from playwright.async_api import (
        ConsoleMessage,
        Dialog,
        Download,
        FileChooser,
        Frame,
        Page,
        Request,
    )
    from playwright.async_api import Error as PageError

__all__ = ["LEVELS", "ConsoleEntry", "RequestEntry", "Tab"]

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
