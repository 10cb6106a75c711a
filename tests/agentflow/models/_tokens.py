"""An endpoint with vLLM's token APIs; every letter is a token."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from aiohttp import web

__all__ = ["END", "LetterEngine", "letters", "serving"]

END = 0
"""Token that closes a message."""
ROLES = {"system": 1, "user": 2, "assistant": 3}
"""Token that opens a message."""


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class LetterEngine:
    """A scripted engine that records its requests."""

    def __init__(
        self, answers: Sequence[tuple[str, str]], *, generates: bool = True, strips: bool = False
    ) -> None:
        """Describe it.

        :param answers: text and why it ends.
        :param generates: the door that tells versions is open.
        :param strips: its template leaves out the answers of all turns but the last.
        """
        self._answers = list(answers)
        self._generates = generates
        self._strips = strips
        self.prompts: list[list[int]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.tokenized = 0
        """Letters that it tokenized."""

    async def answer(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=dict[str, Any])
        self.asked.append((request.path, body))
        match request.path:
            case "/tokenize":
                ids = self._render(body)
                self.tokenized += len(ids)
                return web.json_response({"tokens": ids, "count": len(ids)})
            case "/inference/v1/generate" if self._generates:
                return web.json_response(self._drawn(body["token_ids"]))
            case "/v1/completions":
                return web.json_response(self._drawn(body["prompt"], plain=True))
            case _:
                return web.json_response({"error": {"message": "closed"}}, status=403)

    def _render(self, body: dict[str, Any]) -> list[int]:
        messages = cast("list[dict[str, str]]", body["messages"])
        ids: list[int] = []
        for place, message in enumerate(messages):
            earlier = message["role"] == "assistant" and place < len(messages) - 1
            said = "" if self._strips and earlier else message["content"]
            ids += [ROLES[message["role"]], *letters(said), END]
        if body["continue_final_message"]:
            return ids[:-1]
        return [*ids, ROLES["assistant"]]

    def _drawn(self, prompt: list[int], *, plain: bool = False) -> dict[str, Any]:
        self.prompts.append(prompt)
        text, finish = self._answers.pop(0)
        ids = [*letters(text), *([END] if finish == "stop" else [])]
        chances = [-0.5 - place for place in range(len(ids))]
        told: dict[str, Any] = (
            {"token_logprobs": chances} if plain else {"content": [{"logprob": chance} for chance in chances]}
        )
        choice: dict[str, Any] = {
            "text": text,
            "finish_reason": finish,
            "token_ids": ids,
            "logprobs": told,
            **({"prompt_token_ids": prompt} if plain else {}),
        }
        if not plain:
            cut = len(ids) // 2
            choice["weight_versions"] = [
                {"version": "6", "start": 0, "end": cut},
                {"version": "7", "start": cut, "end": len(ids)},
            ]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        whole = {} if plain else {"prompt_token_ids": prompt}
        return {"choices": [choice], "model": "letters", "usage": usage, **whole}


@asynccontextmanager
async def serving(engine: LetterEngine) -> AsyncGenerator[str]:
    """Serve it and yield its address, up to `/v1`."""
    app = web.Application()
    app.router.add_post("/{path:.*}", engine.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
