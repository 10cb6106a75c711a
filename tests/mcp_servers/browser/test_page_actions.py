"""Commands to a page that is changing its process."""

import pytest
from playwright.async_api import Error

from mcp_servers.browser._page_actions import retry_while_swapping

CHANGING = "Page.go_back: Protocol error (Page.getNavigationHistory): Not attached to an active page"


async def test_a_command_refused_while_a_page_changes_its_process_is_retried() -> None:
    refusals = [Error(CHANGING), Error(CHANGING)]

    async def work() -> str:
        if refusals:
            raise refusals.pop()
        return "back"

    assert await retry_while_swapping(work) == "back"


async def test_any_other_error_of_a_page_is_raised_immediately() -> None:
    attempts: list[int] = []

    async def work() -> None:
        attempts.append(1)
        raise Error("Page.go_back: Target closed")

    with pytest.raises(Error, match="Target closed"):
        await retry_while_swapping(work)
    assert attempts == [1]
