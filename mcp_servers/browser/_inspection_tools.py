"""Read-only tools: snapshots, screenshots, the console and the network."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._files import save, save_if_named
from mcp_servers.browser._page_actions import locate, read_page, stop_scripts
from mcp_servers.browser._schemas import (
    ConsoleLines,
    Element,
    FilePath,
    OnlyElement,
    PageState,
    RequestDetails,
    RequestLines,
    SavedFile,
    ScreenshotResult,
    SnapshotMatches,
)
from mcp_servers.browser._snapshots import page_state, snapshot_of, with_title
from mcp_servers.browser._state import LEVELS, BrowserState, Level, Tab
from mcp_servers.core._call import CallContext, Image
from mcp_servers.core._running import shown
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool

if TYPE_CHECKING:
    from playwright.async_api import Request, Response

    from mcp_servers.browser._state import RequestEntry


MAX_LINES = 200
MAX_PICTURE_PIXELS = 16_384
PICTURE_SECONDS = 15
_FLAGGED = re.compile(r"/(.*)/([dgimsuvy]*)\Z", re.DOTALL)
CONTEXT_LINES = 2
SEARCH_SECONDS = 5
RequestPart = Literal["request-headers", "request-body", "response-headers", "response-body"]
BODY_SECONDS = 5
_STATIC = frozenset({"image", "font", "media", "script", "stylesheet", "manifest", "texttrack"})

# Expressions run in the page, where an endless one can be stopped like any other script.
_MATCHING = """([lines, source, flags]) => {
  const expression = new RegExp(source, flags);
  const matching = [];
  lines.forEach((line, index) => {
    expression.lastIndex = 0;
    if (expression.test(line))
      matching.push(index);
  });
  return matching;
}"""


class InspectionTools:
    """Read-only tools."""

    @tool(title="Page snapshot", read_only=True, open_world=True)
    async def snapshot(
        self,
        session: Session,
        context: CallContext,
        target: OnlyElement = None,
        filename: FilePath = None,
        depth: Annotated[
            int | None, Field(ge=0, le=1_000, description="The maximum depth of the list.")
        ] = None,
        boxes: Annotated[
            bool, Field(description="Include the position of each element: [box=x,y,width,height].")
        ] = False,
    ) -> PageState:
        """Return the accessible content of the page as an indented list with a ref for each element.

        Use it to see the page before you act; most actions return it too. For acting it is better than a screenshot.
        """

        async def read(tab: Tab) -> str:
            if target is None:
                return await snapshot_of(tab, depth=depth, boxes=boxes or None)
            element = await locate(tab, target)
            part = await element.aria_snapshot(mode="ai", depth=depth, boxes=boxes or None)
            return tab.names.shown(part)

        text, title = await read_page("browser_snapshot", session, lambda tab: with_title(tab, read))
        if filename is not None:
            saved = await save("browser_snapshot", session, filename, text.encode())
            text = f"saved to {saved.path}"
        return await page_state(session.get(BrowserState), session, context, text=text, title=title)

    @tool(title="Find in page snapshot", read_only=True, open_world=True)
    async def find(
        self,
        session: Session,
        text: Annotated[
            str | None,
            Field(min_length=1, description="The text to find, ignoring case."),
        ] = None,
        regex: Annotated[
            str | None,
            Field(
                min_length=1,
                max_length=1_000,
                description="A JavaScript regular expression instead of text; `/…/i` sets flags.",
            ),
        ] = None,
        filename: FilePath = None,
    ) -> SnapshotMatches:
        """Find lines of the page's snapshot, with the lines around them.

        Use it on long pages to find an element's ref without reading the whole snapshot.
        """
        if (text is None) == (regex is None):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "browser_find: give either text or regex.")
        state = session.get(BrowserState)

        async def search(tab: Tab) -> tuple[list[str], list[int]]:
            lines = (await snapshot_of(tab)).splitlines()
            if text is not None:
                return lines, [at for at, line in enumerate(lines) if text.casefold() in line.casefold()]
            flagged = _FLAGGED.match(regex or "")
            source, flags = (flagged[1], flagged[2]) if flagged else (regex or "", "")
            return lines, await matching_lines("browser_find", state, tab, lines, source, flags)

        lines, matches = await read_page("browser_find", session, search)
        shown = excerpt(lines, matches)
        path = await save_if_named("browser_find", session, filename, shown)
        limit = state.settings.snapshot_characters
        return SnapshotMatches(matches=len(matches), text="" if path else shown[:limit], path=path)

    @tool(title="Take a screenshot", read_only=True, open_world=True)
    async def take_screenshot(
        self,
        session: Session,
        context: CallContext,
        target: OnlyElement = None,
        element: Element = None,
        type: Annotated[Literal["png", "jpeg", "webp"] | None, Field(description="The image format.")] = None,
        filename: Annotated[
            str | None,
            Field(min_length=1, description="Also save the picture to this file in the workspace."),
        ] = None,
        fullPage: Annotated[
            bool, Field(description="Capture the whole page, not only the visible part.")
        ] = False,
        scale: Annotated[
            Literal["css", "device"], Field(description="Measure in CSS pixels or in device pixels.")
        ] = "css",
    ) -> ScreenshotResult:
        """Take a screenshot of the page, or of one element.

        Use it to see the appearance of a page; for acting, browser_snapshot is more useful.
        """
        if target is not None and fullPage:
            message = "browser_take_screenshot: target and fullPage exclude each other; leave one out."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        state = session.get(BrowserState)
        kind = type or _kind_of(filename)

        async def shoot(tab: Tab) -> bytes:
            if target is not None:
                return await (await locate(tab, target)).screenshot(type=kind, scale=scale)
            if fullPage:
                await _check_size(tab)
            # Only the rendering takes time here, which is long for a long page.
            milliseconds = PICTURE_SECONDS * 1000
            return await tab.page.screenshot(type=kind, scale=scale, full_page=fullPage, timeout=milliseconds)

        picture = await read_page("browser_take_screenshot", session, shoot)
        context.show(Image(picture, f"image/{kind}"))
        path = await save_if_named("browser_take_screenshot", session, filename, picture)
        page = await page_state(state, session, context, snapshot=False)
        return ScreenshotResult(**dict(page), path=path)

    @tool(title="Get console messages", read_only=True, open_world=True)
    async def console_messages(
        self,
        session: Session,
        level: Annotated[Level, Field(description="The lowest severity to show.")] = "info",
        all: Annotated[bool, Field(description="Include messages of earlier pages.")] = False,
        filename: FilePath = None,
    ) -> ConsoleLines:
        """Return the messages of the page's console.

        Use it to find out why a page does not work.
        """

        async def read(tab: Tab) -> tuple[list[str], int]:
            entries = [entry for entry in tab.console if all or entry.epoch == tab.epoch]
            severe = LEVELS[: LEVELS.index(level) + 1]
            return [entry.text for entry in entries if entry.level in severe], len(entries)

        lines, total = await read_page("browser_console_messages", session, read)
        path = await save_if_named("browser_console_messages", session, filename, "\n".join(lines))
        shown = [] if path else lines[-MAX_LINES:]
        return ConsoleLines(messages=shown, left_out=total - len(shown), path=path)

    @tool(title="List network requests", read_only=True, open_world=True)
    async def network_requests(
        self,
        session: Session,
        static: Annotated[
            bool, Field(description="Include successful requests for images, fonts, scripts and styles.")
        ] = False,
        filter: Annotated[
            str | None,
            Field(
                min_length=1,
                max_length=1_000,
                description="A JavaScript regular expression that the address must match.",
            ),
        ] = None,
        filename: FilePath = None,
    ) -> RequestLines:
        """List the requests that the page has made since it was opened.

        Use it to see where a page gets its data; browser_network_request shows the details of one request.
        """
        state = session.get(BrowserState)

        async def read(tab: Tab) -> tuple[list[str], int]:
            entries = list(tab.requests)
            wanted = [
                entry
                for entry in entries
                if static or entry.request.resource_type not in _STATIC or entry.request.failure is not None
            ]
            if filter is not None:
                urls = [entry.request.url for entry in wanted]
                matches = await matching_lines("browser_network_requests", state, tab, urls, filter, "")
                wanted = [wanted[index] for index in matches]
            return [await line_of(entry) for entry in wanted], len(entries)

        lines, total = await read_page("browser_network_requests", session, read)
        path = await save_if_named("browser_network_requests", session, filename, "\n".join(lines))
        shown = [] if path else lines[-MAX_LINES:]
        return RequestLines(requests=shown, left_out=total - len(shown), path=path)

    @tool(title="Show network request details", read_only=True, open_world=True)
    async def network_request(
        self,
        session: Session,
        context: CallContext,
        index: Annotated[
            int, Field(ge=1, description="The number of the request in browser_network_requests.")
        ],
        part: Annotated[RequestPart | None, Field(description="Return only this part.")] = None,
        filename: FilePath = None,
    ) -> RequestDetails:
        """Show the headers and bodies of one request and its response.

        Use it to read the raw data behind a page.
        """
        state = session.get(BrowserState)

        async def read(tab: Tab) -> RequestDetails:
            entry = next((request for request in tab.requests if request.number == index), None)
            if entry is None:
                message = f"browser_network_request: there is no request {index}: browser_network_requests lists them."
                raise ToolFailure(ErrorKind.NOT_FOUND, message)
            return await details_of(entry, part, state, session, context)

        details = await read_page("browser_network_request", session, read)
        path = await save_if_named("browser_network_request", session, filename, details.text)
        return details if path is None else details.model_copy(update={"text": "", "path": path})


class PdfTools:
    """The tool of the group `pdf`."""

    @tool(title="Save as PDF", read_only=True, open_world=True)
    async def pdf_save(
        self,
        session: Session,
        filename: Annotated[
            str | None,
            Field(min_length=1, description="The file in the workspace; by default `page-1.pdf`, …"),
        ] = None,
    ) -> SavedFile:
        """Save the page as a PDF file in the workspace.

        Use it to keep a page, or to pass it to document tools.
        """
        state = session.get(BrowserState)
        data = await read_page("browser_pdf_save", session, lambda tab: tab.page.pdf())
        if filename is None:
            state.files += 1
            filename = f"page-{state.files}.pdf"
        return await save("browser_pdf_save", session, filename, data)


def _kind_of(filename: str | None) -> Literal["png", "jpeg", "webp"]:
    ending = (filename or "").lower().rpartition(".")[2]
    return "jpeg" if ending in ("jpg", "jpeg") else "webp" if ending == "webp" else "png"


async def _check_size(tab: Tab) -> None:
    size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    width, height = await tab.page.evaluate(size)
    if max(width, height) > MAX_PICTURE_PIXELS:
        message = (
            f"browser_take_screenshot: the page has {width} x {height} pixels, more than the limit of a picture "
            f"({MAX_PICTURE_PIXELS}): leave fullPage out, and scroll."
        )
        raise ToolFailure(ErrorKind.OUTPUT_LIMIT, message)


async def matching_lines(
    tool: str, state: BrowserState, tab: "Tab", lines: list[str], source: str, flags: str
) -> list[int]:
    """Return the indices of the lines that a JavaScript regular expression matches. It runs in the page, with a time limit.

    :raises ToolFailure: `bad_arguments`, if the expression is invalid; `timeout`, if it takes too long.
    """
    from playwright.async_api import Error

    with anyio.move_on_after(min(SEARCH_SECONDS, state.settings.script_seconds)):
        try:
            return await tab.page.evaluate(_MATCHING, [lines, source, flags])
        except Error as error:
            if "SyntaxError" not in error.message:
                raise
            reason = error.message.partition("SyntaxError: ")[2].splitlines()[0]
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: {reason}.") from None
    await stop_scripts(state, tab)
    raise ToolFailure(ErrorKind.TIMEOUT, f"{tool}: the expression takes too long; use a simpler one.")


def excerpt(lines: list[str], matches: list[int]) -> str:
    """Return the matching lines with the lines around them and their ancestors; `…` marks gaps."""
    shown: set[int] = set()
    for match in matches:
        shown.update(range(max(match - CONTEXT_LINES, 0), min(match + CONTEXT_LINES + 1, len(lines))))
        shown.update(_ancestors(lines, max(match - CONTEXT_LINES, 0)), _ancestors(lines, match))
    text: list[str] = []
    last = -1
    for at in sorted(shown):
        if at != last + 1:
            text.append(f"{' ' * _indent(lines[at])}…")
        text.append(lines[at])
        last = at
    return "\n".join(text)


def _ancestors(lines: list[str], at: int) -> list[int]:
    ancestors: list[int] = []
    indent = _indent(lines[at])
    for above in range(at - 1, -1, -1):
        if _indent(lines[above]) < indent:
            indent = _indent(lines[above])
            ancestors.append(above)
    return ancestors


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


async def line_of(entry: "RequestEntry") -> str:
    """Describe a request in one line."""
    request = entry.request
    head = f"{entry.number}. [{request.method}] {request.url}"
    if request.failure is not None:
        return f"{head} => failed: {request.failure}"
    response = request.existing_response
    return f"{head} => {response.status} {response.status_text}".rstrip() if response else f"{head} => …"


async def details_of(
    entry: "RequestEntry",
    part: RequestPart | None,
    state: BrowserState,
    session: Session,
    context: CallContext,
) -> RequestDetails:
    """Describe a request and its response, or one part of them."""
    request = entry.request
    response = request.existing_response
    sections: list[tuple[str, str]] = []
    if part in (None, "request-headers"):
        sections.append(("Request headers", _header_lines(await request.all_headers())))
    if part in (None, "request-body") and (request.post_data_buffer or part):
        sections.append(("Request body", _text(request.post_data_buffer or b"")))
    if response is not None:
        if part in (None, "response-headers"):
            sections.append(("Response headers", _header_lines(await response.all_headers())))
        if part in (None, "response-body"):
            sections.append(("Response body", await _body(request, response, state.settings.file_bytes)))
    whole = "\n\n".join(content if part else f"{title}:\n{content}" for title, content in sections)
    text = shown(whole, "request.txt", state.settings.snapshot_characters, session, context)
    return RequestDetails(
        method=request.method,
        url=request.url,
        status=response.status if response else None,
        text=text,
        path=None,
    )


async def _body(request: "Request", response: "Response", most: int) -> str:
    from playwright.async_api import Error

    with anyio.move_on_after(BODY_SECONDS):
        try:
            sizes = await request.sizes()
            if sizes["responseBodySize"] > most:
                return f"(not shown: {sizes['responseBodySize']} bytes)"
            return _text(await response.body())
        except Error as error:
            return f"(not available: {error.message.splitlines()[0]})"
    return "(not received yet)"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"(binary, {len(data)} bytes)"


def _header_lines(headers: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in headers.items())
