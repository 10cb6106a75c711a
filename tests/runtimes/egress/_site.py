"""A fake site of a third party on this machine, under as many names as a test resolves to it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


class FakeSite:
    """Files of a folder and `/echo`, with every request that arrived."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        """Method, path, headers and body."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), body))
        if request.path == "/large":
            return web.Response(body=bytes(1 << 20))
        return web.Response(text=f"{request.method} {request.path_qs} {body.decode()}")


@asynccontextmanager
async def fake_site(folder: Path | None = None) -> AsyncGenerator[FakeSite]:
    """Serve the site while the block runs."""
    site = FakeSite()
    app = web.Application()
    if folder is not None:
        app.router.add_static("/files", folder, show_index=True)
    app.router.add_route("*", "/{path:.*}", site.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        server = web.TCPSite(runner, "127.0.0.1", 0)
        await server.start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()
