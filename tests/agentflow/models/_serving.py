"""A scripted endpoint, and a clock that does not wait."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Struct

from agentflow.actors import Clock
from agentflow.models import Accounts, Call, Message, ModelSettings, OpenModel, TextPart, make_model
from agentflow.testing import VirtualClock

Body: TypeAlias = dict[str, Any]
Move: TypeAlias = web.Response | Callable[[Body], "web.Response | None"] | None
"""An answer: fixed, none, or computed from the request."""


class Colour(Struct, frozen=True):
    """Reply type of these tests."""

    name: str
    shade: int


class HastyClock(VirtualClock):
    """A clock on which sleeping takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


class Script:
    """An endpoint that answers with one move after the other and repeats the last."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self.url = ""
        self.bodies: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self._moves = moves

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = msgspec.json.decode(await request.content.read(), type=Body)
        move = self._moves[min(len(self.bodies), len(self._moves) - 1)]
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        response = move(body) if callable(move) else move
        if response is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        # A response can be sent once only.
        return web.Response(status=response.status, body=response.body, headers=response.headers)


@asynccontextmanager
async def script(*moves: Move, port: int = 0) -> AsyncGenerator[Script]:
    """Serve it, by default at any free port."""
    told = Script(moves)
    server = web.Server(told.handle, access_log=None)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    address: tuple[str, int] = runner.addresses[0]
    told.url = f"http://127.0.0.1:{address[1]}/v1"
    try:
        yield told
    finally:
        await runner.cleanup()


def says(
    text: str | None = '{"name": "red", "shade": 3}', *, finish: str = "stop", **more: object
) -> web.Response:
    """Return a good answer with that text."""
    message = {"role": "assistant", "content": text, **more}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body = {
        "id": "one",
        "object": "chat.completion",
        "created": 0,
        "model": "painter-1",
        "choices": [choice],
        "usage": usage,
    }
    return web.json_response(body)


def refuses(status: int, message: str = "no", code: str = "", **headers: str) -> web.Response:
    """Return a bad answer."""
    error = {"message": message, "code": code}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response({"error": error}, status=status, headers=named)


def settings(url: str, **more: Any) -> ModelSettings:  # noqa: ANN401
    return ModelSettings(name="painter", base_url=url, **more)


@asynccontextmanager
async def painter(
    url: str,
    accounts: Accounts | None = None,
    clock: Clock | None = None,
    **more: Any,  # noqa: ANN401
) -> AsyncGenerator[OpenModel]:
    """Open a model at that address."""
    made = make_model(
        settings(url, **more), accounts or Accounts(), environment={}, clock=clock or HastyClock()
    )
    async with made as model:
        yield model


def call(text: str = "Which colour?", role: str = "planner") -> Call[Colour]:
    return Call(role=role, messages=(Message("user", (TextPart(text),)),), reply=Colour)
