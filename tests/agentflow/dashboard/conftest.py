"""A finished synthesis that the tests of a file share, and a client of its view."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio.to_thread
import pytest

from agentflow import synthesize
from agentflow.dashboard import ServedView, open_view
from agentflow.inspection import RunCollection
from tests.agentflow.dashboard._access import use_link

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
    """Yield a served view, and a client that has used its link."""
    async with open_view(runs) as view:
        headers = await anyio.to_thread.run_sync(use_link, view.link())
        async with aiohttp.ClientSession(view.url, headers=headers) as client:
            yield view, client
