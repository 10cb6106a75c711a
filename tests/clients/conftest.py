"""A server with real backends for all clients."""

import re
from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from tests.mcp_servers._program import program

TOKEN = "token-of-clients"


@pytest.fixture(scope="module")
async def url(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[str]:
    """URL of a server; its only token is `TOKEN`."""
    words = ["bash", "code", "files", "--http", "127.0.0.1:0", "--token", TOKEN]
    # Sandboxes with normal priority, and a client that has told us that it accepts events of any size.
    words += ["runtime={name: process, idle: false}", "client_profiles={unlimited: {event_bytes: null}}"]
    async with program(*words) as server:
        said = await server.next_line()
        found = re.search(r"http://\S+", said)
        assert found is not None, said
        yield found[0]
