"""A web of names: each leads to an address, and every address that may be reached to one server on this machine."""

import gzip
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from mcp_servers.web import Network
from mcp_servers.web._parsers import ParserPool

PUBLIC = "93.184.216.34"


class Clock:
    """Time that only passes while somebody waits."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Site:
    """Pages by path, and visits."""

    def __init__(self, parsers: ParserPool) -> None:
        self.parsers = parsers
        self.names: dict[str, list[str]] = {}
        self.pages: dict[str, list[web.Response]] = {}
        self.requests: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.resolved: list[str] = []
        self.dialled: list[str] = []
        self.clock = Clock()
        self.port = 0

    @property
    def network(self) -> Network:
        """The world, seen from this site's visitors."""
        clock = self.clock
        return Network(self.resolve, self.dial, clock, clock, clock.sleep)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        if host not in self.names:
            raise OSError("no such host")
        return self.names[host]

    def dial(self, address: str, port: int) -> tuple[str, int]:
        self.dialled.append(address)
        return "127.0.0.1", self.port

    def add(
        self,
        address: str,
        body: str | bytes = b"",
        *,
        status: int = 200,
        type: str = "text/html; charset=utf-8",
        zipped: bool = False,
        **headers: str,
    ) -> str:
        """A page at `host/path`, whose host is a public one; several at one place come one after the other."""
        host, _, path = address.partition("/")
        self.names.setdefault(host, [PUBLIC])
        data = body.encode() if isinstance(body, str) else body
        page_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if type:
            page_headers["Content-Type"] = type
        if zipped:
            data, page_headers["Content-Encoding"] = gzip.compress(data), "gzip"
        self.pages.setdefault(f"{host}/{path}", []).append(
            web.Response(body=data, status=status, headers=page_headers)
        )
        return f"http://{address}"

    def moved(self, address: str, target: str, status: int = 302) -> str:
        """A redirect."""
        return self.add(address, status=status, Location=target)

    async def answer(self, request: web.Request) -> web.Response:
        address = f"{request.host.partition(':')[0]}{request.raw_path.partition('?')[0]}"
        self.requests.append(address)
        self.headers.append(dict(request.headers))
        answers = self.pages.get(address, [])
        if not answers:
            return web.Response(status=404, text="nothing here")
        page = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.Response(body=page.body, status=page.status, headers=page.headers)


@asynccontextmanager
async def a_site(parsers: ParserPool) -> AsyncGenerator[Site]:
    """One, listening."""
    site = Site(parsers)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()
