"""Browser sessions, compared with Playwright alone on the same Chromium.

Both sides alternate in each round; figures are medians. A session is ready when the page's snapshot is available: for
Playwright alone a context, a page, a navigation and a snapshot; for us a new session and `browser_navigate`.
"""

import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from aiohttp import web
from playwright.async_api import Browser, async_playwright

from benchmarks._rows import Row
from mcp_servers import ToolTable
from mcp_servers.browser import BrowserBackend
from mcp_servers.browser._chromium import find_chromium

ROUNDS = 9
SNAPSHOTS = 30
AT_ONCE = 20

PAGE = "<!doctype html><title>Shop</title><h1>Shop</h1>" + "".join(
    f"<section><h2>Thing {number}</h2><p>It is number {number}.</p><a href='/{number}'>More</a>"
    f"<button>Buy</button><input aria-label='How many'></section>"
    for number in range(40)
)


@asynccontextmanager
async def shop() -> AsyncGenerator[str]:
    """Write a page with forty elements; return its URL."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    application = web.Application()
    application.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


class Alone:
    """Playwright alone."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url

    async def visit(self) -> None:
        """Open a context on the page, and close it."""
        context = await self._browser.new_context()
        page = await context.new_page()
        await page.goto(self._url)
        await page.aria_snapshot(mode="ai")
        self.ready = time.perf_counter()
        await context.close()

    async def snapshots(self) -> float:
        """Seconds for a snapshot."""
        context = await self._browser.new_context()
        page = await context.new_page()
        await page.goto(self._url)
        seconds = await median_of(SNAPSHOTS, lambda: page.aria_snapshot(mode="ai"))
        await context.close()
        return seconds


class Ours:
    """Sessions of the backend."""

    def __init__(self, table: ToolTable, url: str) -> None:
        self._table = table
        self._url = url

    async def call(self, name: str, **arguments: object) -> dict[str, object]:
        """Make a call that must succeed."""
        result = await self._table.call(name, arguments)
        assert result.ok, result
        return result.data

    async def visit(self) -> None:
        """Open a session on the page, and end it."""
        session = (await self.call("session_start"))["session"]
        await self.call("browser_navigate", session=session, url=self._url)
        self.ready = time.perf_counter()
        await self.call("session_end", session=session)

    async def snapshots(self) -> float:
        """Seconds for a snapshot."""
        session = (await self.call("session_start"))["session"]
        await self.call("browser_navigate", session=session, url=self._url)
        seconds = await median_of(SNAPSHOTS, lambda: self.call("browser_snapshot", session=session))
        await self.call("session_end", session=session)
        return seconds


async def median_of(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Return the median seconds of several runs."""
    taken: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


async def ready(one: Alone | Ours) -> float:
    """Seconds until a new session is on the page."""
    begun = time.perf_counter()
    await one.visit()
    return one.ready - begun


async def at_once(one: Alone | Ours) -> float:
    """Return the seconds until that many concurrent sessions have loaded the page."""
    begun = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(one.visit)
    return time.perf_counter() - begun


async def measure() -> list[Row]:
    """The figures."""
    async with shop() as url, async_playwright() as playwright:
        with tempfile.TemporaryDirectory() as downloads:
            # Chromium's own sandbox does not work as root.
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(None), downloads_path=downloads, args=["--no-sandbox"]
            )
            settings = {"browser": {"allowed_hosts": ["127.0.0.1"]}}
            async with ToolTable([BrowserBackend()], settings=settings) as table:
                rows = await compare(Ours(table, url), Alone(browser, url))
            await browser.close()
    return rows


async def compare(ours: Ours, alone: Alone) -> list[Row]:
    """Measure both sides alternately."""
    for one in (ours, alone):
        await ready(one)
    turns = [(await ready(ours), await ready(alone)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(side) * 1000 for side in zip(*turns, strict=True))
    ratio = statistics.median(one / other for one, other in turns)
    snapshot, bare = await ours.snapshots() * 1000, await alone.snapshots() * 1000
    many, many_alone = await at_once(ours), await at_once(alone)
    name = "Playwright alone"
    return [
        Row("browser: session ready on a page, ms", mine, theirs, name),
        Row("browser: the same, times Playwright alone", ratio, floor=1.2),
        Row("browser: snapshot, ms", snapshot, bare, name, 30.0),
        Row(f"browser: {AT_ONCE} sessions at once, s", many, many_alone, name, 8.0),
    ]
