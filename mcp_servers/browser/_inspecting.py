"""Tools that look at the page: snapshots, pictures, the console, the network."""

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._acting import locate, look
from mcp_servers.browser._arguments import Element, FilePath, OnlyElement
from mcp_servers.browser._looking import page_state, snapshot_of, with_title
from mcp_servers.browser._matching import excerpt, matching_lines
from mcp_servers.browser._requests import details_of, line_of, shown_requests
from mcp_servers.browser._results import (
    ConsoleLines,
    Found,
    PageState,
    RequestDetails,
    RequestLines,
    Saved,
    Shot,
)
from mcp_servers.browser._saving import save, save_if_named
from mcp_servers.browser._state import BrowserState
from mcp_servers.browser._tab import LEVELS
from mcp_servers.core._context import CallContext
from mcp_servers.core._result import Image
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool

if TYPE_CHECKING:
    from mcp_servers.browser._tab import Tab

__all__ = ["InspectingTools", "PdfTools"]

MOST_LINES = 200
LONGEST_PICTURE = 16_384
PICTURE_SECONDS = 15
_FLAGGED = re.compile(r"/(.*)/([dgimsuvy]*)\Z", re.DOTALL)


class InspectingTools:
    """Tools that look at the page."""

    @tool(title="Page snapshot", read_only=True, open_world=True)
    async def snapshot(
        self,
        session: Session,
        context: CallContext,
        target: OnlyElement = None,
        filename: FilePath = None,
        depth: Annotated[int | None, Field(ge=0, le=1_000, description="How deep the list may go.")] = None,
        boxes: Annotated[
            bool, Field(description="Say where each element is: [box=x,y,width,height].")
        ] = False,
    ) -> PageState:
        """Return what can be seen and used on the page, as an indented list with a ref for each element.

        Use it to see the page before you act; most actions return it too. It is better than a screenshot for acting.
        """

        async def read(tab: "Tab") -> str:
            if target is None:
                return await snapshot_of(tab, depth=depth, boxes=boxes or None)
            place = await locate(tab, target)
            part = await place.aria_snapshot(mode="ai", depth=depth, boxes=boxes or None)
            return tab.names.shown(part)

        text, title = await look("browser_snapshot", session, lambda tab: with_title(tab, read))
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
            Field(min_length=1, description="The text to look for; capital letters make no difference."),
        ] = None,
        regex: Annotated[
            str | None,
            Field(
                min_length=1,
                max_length=1_000,
                description="A JavaScript expression instead; `/…/i` for flags.",
            ),
        ] = None,
        filename: FilePath = None,
    ) -> Found:
        """Find lines of the page's snapshot, with those around them.

        Use it on long pages to find an element's ref without reading the whole snapshot.
        """
        if (text is None) == (regex is None):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "browser_find: give either text or regex.")
        state = session.get(BrowserState)

        async def search(tab: "Tab") -> tuple[list[str], list[int]]:
            lines = (await snapshot_of(tab)).splitlines()
            if text is not None:
                return lines, [at for at, line in enumerate(lines) if text.casefold() in line.casefold()]
            flagged = _FLAGGED.match(regex or "")
            source, flags = (flagged[1], flagged[2]) if flagged else (regex or "", "")
            return lines, await matching_lines("browser_find", state, tab, lines, source, flags)

        lines, matches = await look("browser_find", session, search)
        shown = excerpt(lines, matches)
        path = await save_if_named("browser_find", session, filename, shown)
        limit = state.settings.snapshot_characters
        return Found(matches=len(matches), text="" if path else shown[:limit], path=path)

    @tool(title="Take a screenshot", read_only=True, open_world=True)
    async def take_screenshot(
        self,
        session: Session,
        context: CallContext,
        target: OnlyElement = None,
        element: Element = None,
        type: Annotated[
            Literal["png", "jpeg", "webp"] | None, Field(description="The kind of picture.")
        ] = None,
        filename: Annotated[
            str | None,
            Field(min_length=1, description="Also save the picture to this file of the workspace."),
        ] = None,
        fullPage: Annotated[
            bool, Field(description="The whole page, not only what is seen of it now.")
        ] = False,
        scale: Annotated[
            Literal["css", "device"], Field(description="Pixels of the page, or of the screen.")
        ] = "css",
    ) -> Shot:
        """Show a picture of the page, or of one element.

        Use it to see what a page looks like; to act, browser_snapshot tells more.
        """
        if target is not None and fullPage:
            message = "browser_take_screenshot: an element has no full page; leave fullPage out."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        state = session.get(BrowserState)
        kind = type or _kind_of(filename)

        async def shoot(tab: "Tab") -> bytes:
            if target is not None:
                return await (await locate(tab, target)).screenshot(type=kind, scale=scale)
            if fullPage:
                await _check_size(tab)
            # No element is waited for, only the drawing, which takes its time where the page is long.
            milliseconds = PICTURE_SECONDS * 1000
            return await tab.page.screenshot(type=kind, scale=scale, full_page=fullPage, timeout=milliseconds)

        picture = await look("browser_take_screenshot", session, shoot)
        context.show(Image(picture, f"image/{kind}"))
        path = None
        if filename is not None:
            path = (await save("browser_take_screenshot", session, filename, picture)).path
        page = await page_state(state, session, context, snapshot=False)
        return Shot(**dict(page), path=path)

    @tool(title="Get console messages", read_only=True, open_world=True)
    async def console_messages(
        self,
        session: Session,
        level: Annotated[
            Literal["error", "warning", "info", "debug"], Field(description="The least severe level to show.")
        ] = "info",
        all: Annotated[bool, Field(description="Also those of pages before this one.")] = False,
        filename: FilePath = None,
    ) -> ConsoleLines:
        """Return what the page wrote to its console.

        Use it to find out why a page does not work.
        """

        async def read(tab: "Tab") -> tuple[list[str], int]:
            entries = [one for one in tab.console if all or one.epoch == tab.epoch]
            severe = LEVELS[: LEVELS.index(level) + 1]
            return [one.text for one in entries if one.level in severe], len(entries)

        lines, total = await look("browser_console_messages", session, read)
        path = await save_if_named("browser_console_messages", session, filename, "\n".join(lines))
        shown = [] if path else lines[-MOST_LINES:]
        return ConsoleLines(messages=shown, left_out=total - len(shown), path=path)

    @tool(title="List network requests", read_only=True, open_world=True)
    async def network_requests(
        self,
        session: Session,
        static: Annotated[
            bool, Field(description="Also pictures, fonts, scripts, styles that were had.")
        ] = False,
        filter: Annotated[
            str | None,
            Field(
                min_length=1,
                max_length=1_000,
                description="A JavaScript expression that the address must match.",
            ),
        ] = None,
        filename: FilePath = None,
    ) -> RequestLines:
        """List the requests of the page since it was opened.

        Use it to see where a page gets its data; browser_network_request shows one of them.
        """
        state = session.get(BrowserState)

        async def read(tab: "Tab") -> tuple[list[str], int]:
            entries = list(tab.requests)
            wanted = shown_requests(entries, static=static)
            if filter is not None:
                urls = [entry.request.url for entry in wanted]
                found = await matching_lines("browser_network_requests", state, tab, urls, filter, "")
                wanted = [wanted[at] for at in found]
            return [await line_of(entry) for entry in wanted], len(entries)

        lines, total = await look("browser_network_requests", session, read)
        path = await save_if_named("browser_network_requests", session, filename, "\n".join(lines))
        shown = [] if path else lines[-MOST_LINES:]
        return RequestLines(requests=shown, left_out=total - len(shown), path=path)

    @tool(title="Show network request details", read_only=True, open_world=True)
    async def network_request(
        self,
        session: Session,
        context: CallContext,
        index: Annotated[int, Field(ge=1, description="The number in browser_network_requests.")],
        part: Annotated[
            Literal["request-headers", "request-body", "response-headers", "response-body"] | None,
            Field(description="Only this part."),
        ] = None,
        filename: FilePath = None,
    ) -> RequestDetails:
        """Show headers and bodies of one request and its response.

        Use it to read data that the page got but shows otherwise.
        """
        state = session.get(BrowserState)

        async def read(tab: "Tab") -> RequestDetails:
            entry = next((one for one in tab.requests if one.number == index), None)
            if entry is None:
                message = (
                    f"browser_network_request: there is no request {index}: see browser_network_requests."
                )
                raise ToolFailure(ErrorKind.NOT_FOUND, message)
            return await details_of(entry, part, state, session, context)

        details = await look("browser_network_request", session, read)
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
            Field(min_length=1, description="The file of the workspace; by default `page-1.pdf`, …"),
        ] = None,
    ) -> Saved:
        """Save the page as a PDF file in the workspace.

        Use it to keep a page, or to hand it to tools for documents.
        """
        state = session.get(BrowserState)

        async def print_page(tab: "Tab") -> bytes:
            return await tab.page.pdf()

        data = await look("browser_pdf_save", session, print_page)
        if filename is None:
            state.files += 1
            filename = f"page-{state.files}.pdf"
        return await save("browser_pdf_save", session, filename, data)


def _kind_of(filename: str | None) -> Literal["png", "jpeg", "webp"]:
    ending = (filename or "").lower().rpartition(".")[2]
    if ending in ("jpg", "jpeg"):
        return "jpeg"
    return "webp" if ending == "webp" else "png"


async def _check_size(tab: "Tab") -> None:
    size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    width, height = await tab.page.evaluate(size)
    if max(width, height) > LONGEST_PICTURE:
        message = (
            f"browser_take_screenshot: the page has {width} x {height} pixels, more than a picture may have "
            f"({LONGEST_PICTURE}): leave fullPage out, and scroll."
        )
        raise ToolFailure(ErrorKind.OUTPUT_LIMIT, message)
