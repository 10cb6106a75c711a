"""A proxy that records the traffic with an engine, byte by byte."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Struct

__all__ = ["Answer", "Recorder", "recorded"]


class _TokenLogprob(Struct):
    logprob: float


class _Logprobs(Struct):
    content: list[_TokenLogprob]


class _Choice(Struct):
    token_ids: tuple[int, ...]
    logprobs: _Logprobs
    finish_reason: str


class _Told(Struct):
    choices: list[_Choice]
    prompt_token_ids: tuple[int, ...] | None = None


class Answer(Struct):
    """Tokens that the engine reports as sampled, and the prompt that it was sent."""

    prompt_token_ids: tuple[int, ...]
    choices: list[_Choice]


class _Request(Struct):
    token_ids: tuple[int, ...]


class Recorder:
    """Forwards requests to an engine, and records the tokens it reports."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self._address = address
        self._session = session

    async def pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
        target = f"{self._address}{request.path}"
        async with self._session.post(target, data=body, headers=headers) as answer:
            said = await answer.read()
        if request.path.endswith("/generate") and answer.status == HTTPStatus.OK:
            told = msgspec.json.decode(said, type=_Told)
            asked = msgspec.json.decode(body, type=_Request).token_ids
            assert told.prompt_token_ids in (None, asked)
            self.answers.append(Answer(asked, told.choices))
        return web.Response(status=answer.status, body=said, content_type="application/json")


@asynccontextmanager
async def recorded(address: str) -> AsyncGenerator[Recorder]:
    """Serve a recording proxy for the engine at that address."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        recorder = Recorder(address, session)
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", recorder.pass_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        recorder.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield recorder
        finally:
            await runner.cleanup()
