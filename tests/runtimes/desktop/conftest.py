"""Runtime for a module, and a desktop in it."""

from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from runtimes import Runtime
from runtimes.desktop import Desktop, DesktopOptions, DesktopRuntime
from runtimes.process import ProcessRuntime


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Runtime]:
    async with ProcessRuntime(preload=(), idle=False) as running:
        yield running


@pytest.fixture(scope="module")
async def desktops(runtime: Runtime) -> AsyncGenerator[DesktopRuntime]:
    async with DesktopRuntime(runtime, DesktopOptions(width=800, height=600)) as desktops:
        yield desktops


@pytest.fixture(scope="module")
async def desktop(desktops: DesktopRuntime) -> Desktop:
    return await desktops.start()
