"""Chromium's own protocol, for what Playwright has no words for."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from playwright.async_api import Page

__all__ = ["attached", "devtools"]

T = TypeVar("T")

_CHANGING = "Not attached to an active page"
_LONGEST_CHANGE = 5
_PAUSE = 0.02


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
