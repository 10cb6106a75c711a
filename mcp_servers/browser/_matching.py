"""Finds lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._scripts import MATCHING
from mcp_servers.browser._stopping import stop_scripts

if TYPE_CHECKING:
    from mcp_servers.browser._state import BrowserState
    from mcp_servers.browser._tab import Tab

__all__ = ["excerpt", "matching_lines"]

AROUND = 2
SEARCH_SECONDS = 5


async def matching_lines(
    tool: str, state: BrowserState, tab: Tab, lines: list[str], source: str, flags: str
) -> list[int]:
    """Which lines an expression matches: it runs in the page, and is stopped where it takes for ever.

    :raises ToolFailure: `bad_arguments`, if it is no expression; `timeout`, if it takes for ever.
    """
    from playwright.async_api import Error

    with anyio.move_on_after(min(SEARCH_SECONDS, state.settings.script_seconds)):
        try:
            return cast("list[int]", await tab.page.evaluate(MATCHING, [lines, source, flags]))
        except Error as error:
            if "SyntaxError" not in error.message:
                raise
            reason = error.message.partition("SyntaxError: ")[2].splitlines()[0]
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: {reason}.") from None
    await stop_scripts(state, tab)
    raise ToolFailure(ErrorKind.TIMEOUT, f"{tool}: the expression takes too long; use a simpler one.")


def excerpt(lines: list[str], matches: list[int]) -> str:
    """The matching lines with those around them, below their path from the root; gaps are shown as `…`."""
    shown: set[int] = set()
    for match in matches:
        shown.update(range(max(match - AROUND, 0), min(match + AROUND + 1, len(lines))))
        shown.update(_ancestors(lines, max(match - AROUND, 0)), _ancestors(lines, match))
    text: list[str] = []
    last = -1
    for at in sorted(shown):
        if at != last + 1:
            text.append(f"{' ' * _indent(lines[at])}…")
        text.append(lines[at])
        last = at
    return "\n".join(text)


def _ancestors(lines: list[str], at: int) -> list[int]:
    found: list[int] = []
    indent = _indent(lines[at])
    for above in range(at - 1, -1, -1):
        if _indent(lines[above]) < indent:
            indent = _indent(lines[above])
            found.append(above)
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
