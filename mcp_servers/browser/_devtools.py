"""Chromium's own protocol, for what Playwright has no words for."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from playwright.async_api import Page

__all__ = ["devtools"]


@asynccontextmanager
async def devtools(page: Page) -> AsyncGenerator[Callable[..., Awaitable[dict[str, Any]]]]:
    """A line to the page: call it with a method and its parameters."""
    from playwright.async_api import Error

    line = await page.context.new_cdp_session(page)
    send = cast("Callable[[str, dict[str, object]], Awaitable[dict[str, Any]]]", cast("Any", line).send)

    async def ask(method: str, **parameters: object) -> dict[str, Any]:
        return await send(method, parameters)

    try:
        yield ask
    finally:
        # A page that has crashed lets nobody go.
        with contextlib.suppress(Error), anyio.move_on_after(1, shield=True):
            await line.detach()
