"""A finished synthesis that the tests of a file share, and a client of its view."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from agentflow import synthesize
from agentflow.dashboard import ServedView, open_view
from agentflow.inspection import RunCollection

WORDS = ("max_depth=3", "depth_threshold=1", "control=false")
"""Settings of small trees."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output directory of a run with two trees."""
    folder = tmp_path_factory.mktemp("view") / "run"
    words = [*WORDS, f"output_dir={folder}"]
    synthesize(seeds=["Explore the ferries", "Explore the lighthouses"], overrides=words, progress=False)
    return folder


@asynccontextmanager
async def browser(runs: RunCollection) -> AsyncGenerator[tuple[ServedView, aiohttp.ClientSession]]:
    """Yield a served view, and a client that has opened its link."""
    # A cookie jar of a browser keeps cookies of addresses, too.
    jar = aiohttp.CookieJar(unsafe=True)
    async with open_view(runs) as view, aiohttp.ClientSession(view.url, cookie_jar=jar) as client:
        async with client.get(view.link().removeprefix(view.url)) as opened:
            assert opened.status == 200
        yield view, client
