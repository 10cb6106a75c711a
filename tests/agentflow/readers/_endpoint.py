"""Endpoint of a language model in the test's own process, with scripted answers."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Script = Callable[[str, str, dict[str, Any]], str | None]
"""Returns the answer to a system prompt, a request and a body; `None`: the endpoint fails."""


@asynccontextmanager
async def scripted_endpoint(script: Script) -> AsyncGenerator[str]:
    """Serve chat completions and yield the address."""

    async def answer(request: web.Request) -> web.Response:
        body: dict[str, Any] = json.loads(await request.read())
        said = {message["role"]: str(message["content"]) for message in body["messages"]}
        text = script(said.get("system", ""), said["user"], body)
        if text is None:
            return web.json_response({"error": {"message": "no"}}, status=400)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [choice],
                "usage": usage,
            }
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
