"""Web tools, compared with the bare request and the bare library that converts pages to Markdown.

Pages and the search engine are on this machine. Ours are whole calls through a sandbox: addresses are checked, pages are
parsed in another process with limits. Figures are medians of elapsed time: on a busy machine the parser waits for a free core.
"""

import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module

import aiohttp
import anyio
from aiohttp import web

from agentflow.sandbox import Sandbox, SandboxSettings
from benchmarks._rows import Row

ROUNDS = 30
SENTENCE = "The harbour of Kelder was built by Anna Brook, and ships of every kind lay there in the year {}. "
ARTICLE = "".join(f"<h2>Year {year}</h2><p>{SENTENCE.format(year) * 6}</p>" for year in range(1800, 1900))
PAGE = (
    f"<!doctype html><html><head><title>Kelder</title></head><body><article>{ARTICLE}</article></body></html>"
)
HITS = {
    "organic": [{"title": f"Hit {n}", "link": f"https://{n}.example/", "snippet": "x"} for n in range(10)]
}


async def measure() -> list[Row]:
    """The figures."""
    async with _served() as url, aiohttp.ClientSession() as plain:
        with tempfile.TemporaryDirectory() as folder:
            own = {
                "serper_api_key": "k",
                "serper_url": url,
                "allow_private": True,
                "host_interval": 0,
                "robots": False,
            }
            visit, read, search = await _ours(url, {**own, "cache": None})
            cached, _, _ = await _ours(url, {**own, "cache": {"folder": folder}}, warm=True)

        async def request() -> None:
            async with plain.get(f"{url}/page") as answer:
                await answer.read()

        async def ask() -> None:
            async with plain.post(f"{url}/search", json={"q": "x", "num": 10}) as answer:
                await answer.json()

        async def to_markdown() -> None:
            await request()
            import_module("trafilatura").extract(PAGE, output_format="markdown", include_links=True)

        bare, library = await _median(ask), await _median(to_markdown)
    return [
        Row("web_search_ms", search, bare, "the bare request"),
        Row("web_visit_60_kb_ms", visit, library, "the bare request and trafilatura"),
        Row("web_read_60_kb_ms", read, library, "the bare request and trafilatura"),
        Row("web_visit_cached_ms", cached, library, "the bare request and trafilatura"),
    ]


async def _ours(url: str, own: dict[str, object], *, warm: bool = False) -> tuple[float, float, float]:
    """Medians of visits, of searches in the page, and of searches of the web."""
    async with Sandbox(SandboxSettings.model_validate({"backends": {"web": own}})) as sandbox:

        async def call(tool: str, **arguments: object) -> None:
            result = await sandbox.execute(tool, arguments)
            assert result.ok, result.error

        visit = await _median(lambda: call("web:visit", urls=f"{url}/page"))
        if warm:
            return visit, 0.0, 0.0
        read = await _median(lambda: call("web:read", url=f"{url}/page", query="ships in 1850"))
        return visit, read, await _median(lambda: call("web:search", query="x"))


async def _median(work: Callable[[], Awaitable[None]]) -> float:
    taken: list[float] = []
    await work()
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begun) * 1000)
    return round(statistics.median(taken), 2)


@asynccontextmanager
async def _served() -> AsyncGenerator[str]:
    """A page and a search engine."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def search(request: web.Request) -> web.Response:
        return web.json_response(HITS)

    application = web.Application()
    application.router.add_get("/page", page)
    application.router.add_post("/search", search)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    for row in anyio.run(measure):
        print(f"{row.name:<45} {row.ours:>8} {row.theirs:>8} {row.beside}")
