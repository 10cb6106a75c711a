"""Fixtures of the learner's tests: torch with a fixed order of sums, and a tool."""

from collections.abc import Iterator

import pytest

from agentflow.sandbox import register_api_tool
from agentflow.sandbox._api_tools import registered_tools


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Sums are taken by one thread, so they are the same bits wherever the suite runs."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def book() -> Iterator[None]:
    """A tool without state, so that no sandbox has to be made."""
    before = dict(registered_tools)

    @register_api_tool("book:look", read_only=True, open_world=False)
    async def look(word: str) -> str:
        """Look it up in the book.

        :param word: what to look for
        """
        return f"{word} stands in the book"

    del look
    yield
    registered_tools.clear()
    registered_tools.update(before)
