"""An endpoint of embeddings: a word of a text counts in one of few dimensions, and words that mean the same in one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

DIMENSIONS = 8
MEANING = {
    "automobile": 0,
    "car": 0,
    "engine": 0,
    "feline": 1,
    "cat": 1,
    "kitten": 1,
    "boat": 2,
    "ship": 2,
    "vessel": 2,
}


class Endpoint:
    """Recorded requests and prepared responses."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[list[str]] = []
        self.keys: list[str | None] = []
        self.dimensions = DIMENSIONS
        self.status = 200
        self.body: str | None = None

    def texts(self) -> list[str]:
        return [text for texts in self.requests for text in texts]

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body["input"])
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200 or self.body is not None:
            return web.Response(status=self.status, text=self.body or "no\nroom")
        rows = [{"index": index, "embedding": self.vector(text)} for index, text in enumerate(body["input"])]
        return web.json_response({"data": rows[::-1]})

    def vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        vector[-1] = 0.1
        for word in text.lower().replace(".", " ").split():
            if word in MEANING:
                vector[MEANING[word]] += 1.0
        return vector


@asynccontextmanager
async def endpoint() -> AsyncGenerator[Endpoint]:
    """It, listening."""
    server = Endpoint()
    application = web.Application()
    application.router.add_post("/v1/embeddings", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server
    finally:
        await runner.cleanup()
