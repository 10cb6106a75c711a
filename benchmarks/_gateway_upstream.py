"""Upstream of the gateway's benchmark: vLLM's APIs with fixed delays and next to no CPU. `python _gateway_upstream.py`.

It prints its port. Chat answers after 50 ms with the ids of 2,000 read and 200 sampled tokens and their log-probabilities.
Rendering takes 1.7 ms, sampling 46.7 and reading an answer 1.6, as measured with vLLM, so that both ways take 50 ms.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentflow.testing.endpoint._token_apis import CLOSE, derender, logprobs_of, render

__all__ = ["ANSWER", "MODEL", "PROMPT_TOKENS"]

MODEL = "fake"
PROMPT_TOKENS = 2_000
ANSWER = ("The lighthouse keeper wrote down the height of every wave. " * 4)[:199]
"""An answer of 200 tokens: one a byte, and the end of the message."""
_IDS = [*ANSWER.encode(), CLOSE]
_SPECIAL = [
    {"token": f"token_id:{id}", "logprob": value, "bytes": [id % 256], "top_logprobs": []}
    for id, value in zip(_IDS, logprobs_of(_IDS), strict=True)
]
_GENERATED = [
    {"token": f"token_id:{id}", "logprob": value} for id, value in zip(_IDS, logprobs_of(_IDS), strict=True)
]


def _chat() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": ANSWER},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": _IDS,
        "logprobs": {"content": _SPECIAL},
    }
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": len(_IDS),
        "total_tokens": PROMPT_TOKENS + len(_IDS),
    }
    return msgspec.json.encode(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
            "prompt_token_ids": [1000 + place % 50_000 for place in range(PROMPT_TOKENS)],
        }
    )


def _generate() -> bytes:
    choice = {
        "index": 0,
        "text": ANSWER,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": _IDS,
        "logprobs": {"content": _GENERATED},
        "weight_versions": [{"version": "1", "start": 0, "end": len(_IDS)}],
    }
    return msgspec.json.encode({"request_id": "r", "choices": [choice]})


_CHAT, _GENERATE = _chat(), _generate()
_MODELS = msgspec.json.encode(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 100_000}]}
)
_ROUTES: dict[bytes, tuple[float, Callable[[bytes], bytes]]] = {
    b"/v1/chat/completions": (0.05, lambda _: _CHAT),
    b"/inference/v1/generate": (0.0467, lambda _: _GENERATE),
    b"/v1/chat/completions/render": (0.0017, lambda body: msgspec.json.encode(render(body))),
    b"/tokenize": (0.0017, lambda body: msgspec.json.encode(render(body, tokenizes=True))),
    b"/v1/chat/completions/derender": (0.0016, lambda body: msgspec.json.encode(derender(body))),
    b"/v1/models": (0.0, lambda _: _MODELS),
    b"/health": (0.0, lambda _: b"{}"),
}


class _Server(asyncio.Protocol):
    """One connection; requests are not pipelined."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._read = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head_end = self._read.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._read[:head_end])
        body_begin = head_end + 4
        found = head.lower().find(b"content-length:")
        size = int(head[found + 15 :].split(b"\r\n", 1)[0]) if found >= 0 else 0
        if len(self._read) < body_begin + size:
            return
        body = bytes(self._read[body_begin : body_begin + size])
        self._read.clear()
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        asyncio.get_running_loop().create_task(self._answer(path, body))

    async def _answer(self, path: bytes, body: bytes) -> None:
        known = _ROUTES.get(path)
        begin = asyncio.get_running_loop().time()
        content = b"{}" if known is None else known[1](body)
        if known is not None:
            await asyncio.sleep(max(0.0, known[0] - (asyncio.get_running_loop().time() - begin)))
        status = b"404 Not Found" if known is None else b"200 OK"
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
            status,
            len(content),
        )
        self._transport.write(head + content)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent closes it


if __name__ == "__main__":
    asyncio.run(_serve())
