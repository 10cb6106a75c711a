"""Requests of a page, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import anyio

from mcp_servers.browser._results import RequestDetails
from mcp_servers.core._running import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.async_api import Request, Response

    from mcp_servers.browser._state import BrowserState
    from mcp_servers.browser._tab import RequestEntry
    from mcp_servers.core._context import CallContext
    from mcp_servers.core._session import Session

__all__ = ["Part", "details_of", "line_of", "shown_requests"]

Part = Literal["request-headers", "request-body", "response-headers", "response-body"]

PATIENCE = 5
_STATIC = frozenset({"image", "font", "media", "script", "stylesheet", "manifest", "texttrack"})


def shown_requests(entries: list[RequestEntry], *, static: bool) -> list[RequestEntry]:
    """Those worth showing: not what only makes up the page's looks, unless it failed or all are asked for."""
    return [
        entry
        for entry in entries
        if static or entry.request.resource_type not in _STATIC or entry.request.failure is not None
    ]


async def line_of(entry: RequestEntry) -> str:
    """One request on a line."""
    request = entry.request
    head = f"{entry.number}. [{request.method}] {request.url}"
    if request.failure is not None:
        return f"{head} => failed: {request.failure}"
    response = request.existing_response
    return f"{head} => {response.status} {response.status_text}".rstrip() if response else f"{head} => …"


async def details_of(
    entry: RequestEntry, part: Part | None, state: BrowserState, session: Session, context: CallContext
) -> RequestDetails:
    """A request and its response, or one part of them."""
    request = entry.request
    response = request.existing_response
    pieces: list[str] = []
    if part in (None, "request-headers"):
        pieces.append(_headers("Request headers", await request.all_headers(), part))
    if part in (None, "request-body") and (request.post_data_buffer or part):
        pieces.append(_titled("Request body", _text(request.post_data_buffer or b""), part))
    if response is not None:
        if part in (None, "response-headers"):
            pieces.append(_headers("Response headers", await response.all_headers(), part))
        if part in (None, "response-body"):
            body = await _body(request, response, state.settings.file_bytes)
            pieces.append(_titled("Response body", body, part))
    limit = state.settings.snapshot_characters
    text = shown("\n\n".join(pieces), "request.txt", limit, session, context)
    return RequestDetails(
        method=request.method,
        url=request.url,
        status=response.status if response else None,
        text=text,
        path=None,
    )


async def _body(request: Request, response: Response, most: int) -> str:
    from playwright.async_api import Error

    with anyio.move_on_after(PATIENCE):
        try:
            sizes = await request.sizes()
            if sizes["responseBodySize"] > most:
                return f"(not shown: {sizes['responseBodySize']} bytes)"
            return _text(await response.body())
        except Error as error:
            return f"(not available: {error.message.splitlines()[0]})"
    return "(not there yet)"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"(binary, {len(data)} bytes)"


def _headers(title: str, headers: Mapping[str, str], part: Part | None) -> str:
    return _titled(title, "\n".join(f"{name}: {value}" for name, value in headers.items()), part)


def _titled(title: str, text: str, part: Part | None) -> str:
    return text if part else f"{title}:\n{text}"
