"""Stops a script that does not end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from mcp_servers.browser._devtools import devtools

if TYPE_CHECKING:
    from mcp_servers.browser._state import BrowserState
    from mcp_servers.browser._tab import Tab

__all__ = ["stop_scripts"]

PATIENCE = 2


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
