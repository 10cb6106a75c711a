"""Answers of models and servers: any bytes are a result of our clients, or their own error of one line."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import anyio
import openai
import pytest
from hypothesis import strategies as st

from agentflow._typeguards import is_list, is_object
from agentflow.errors import AgentFlowError
from agentflow.gateway import EpisodeOutcome, GatewayClient, GatewayError
from agentflow.models import Accounts, ChatClient, model_failures
from agentflow.models._apis import EncodedRequest
from agentflow.models._token_engine import AnswerStream
from agentflow.models._transport import HttpTransport
from agentflow.readers import EnvironmentFailure, EnvironmentService
from agentflow.serving import EngineControl
from tests.agentflow.models._serving import HastyClock, call, painter, settings
from tests.agentflow.test_http_client import embeddings, engine_models, openenv, vision
from tests.fuzz._forms import forms

pytestmark = pytest.mark.promise("project:fuzzed-answers")


class Answer(NamedTuple):
    """Bytes that a server sends before it closes the connection."""

    line: bytes = b"HTTP/1.1 200 OK"
    headers: Sequence[bytes] = ()
    body: bytes = b"{}"

    @property
    def data(self) -> bytes:
        return b"".join(
            [self.line, b"\r\n", *(header + b"\r\n" for header in self.headers), b"\r\n", self.body]
        )


MESSAGE = {"role": "assistant", "content": "red", "reasoning_content": "t", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
CHAT: dict[str, Any] = {
    "id": "one", "object": "chat.completion", "created": 0, "model": "painter-1",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop", "token_ids": [1], "logprobs": {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, "prompt_token_ids": [1, 2],
}  # fmt: skip
BEGUN: dict[str, Any] = {"episode": "e", "attempt": 1, "mode": "train", "task": {"index": 0, "id": "t", "question": "q"}, "base_url": "http://x/v1", "keys": {"": "k"}, "model": "m", "version": 1, "expires": 60.0, "client": "c", "calls": []}  # fmt: skip
NOTHING: dict[str, Any] = {}
TEMPLATES: tuple[Any, ...] = (
    CHAT,
    CHAT,
    {"content": [{"type": "text", "text": "red"}, {"type": "tool_use", "id": "a", "name": "b", "input": NOTHING}, {"type": "thinking", "thinking": "t"}],
     "model": "m", "stop_reason": "end_turn", "stop_details": {"explanation": "x"}, "usage": {"input_tokens": 3, "output_tokens": 5}},
    {"candidates": [{"content": {"parts": [{"text": "red"}, {"functionCall": {"name": "f", "args": NOTHING}}]}, "finishReason": "STOP"}],
     "usageMetadata": {"promptTokenCount": 3}, "modelVersion": "m"},
    {"message": {"content": "red", "thinking": "t", "tool_calls": [{"function": {"name": "f", "arguments": NOTHING}}]}, "model": "m", "done_reason": "stop", "eval_count": 3},
    {"choices": [{"index": 0, "text": "red", "finish_reason": "stop", "token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "prompt_token_ids": [1]}],
     "tokens": [1, 2], "token_ids": [1, 2], "model": "m"},
    {"error": {"message": "no", "code": "bad", "param": "temperature", "type": "t"}},
    {"success": True, "data": {"state": [{"role": "user", "content": "x"}], "reward": 0.5, "is_terminated": False, "info": {"instance_id": "i"}}},
    {"success": True, "data": ["1", "2"]},
    {"success": True, "data": 1.5},
    {"results": [{"tensors": 1, "verified": 1, "stale": ["a"]}], "weight_version": "1", "is_paused": True, "data": [{"id": "m", "root": "r", "index": 0, "embedding": [1.0, 2.0]}]},
    {"error": {"message": "over", "code": "run_over"}},
    BEGUN,
    {"action": {"type": "object"}, "tasks": [{"id": 1, "question": "q"}]},
    ["agentflow"],
    {"choices": list[Any]()},
)  # fmt: skip
ODD: tuple[bytes, ...] = (
    b"null", b"true", b"-1", b"0", b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 400, b"9" * 5_000, b"-0.0", b"18446744073709551616",
    b'""', b'"\\ud800"', b'"\xff"', b'"\\u0000\\n\\u001b[31m\\u202e"', b'"two\\nlines"', b'"' + b"x" * 5_000 + b'"', b"[]", b"{}", b"[[]]", b"[null]",
    b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"[" * 200_000, b"<html>", b"", b"{", b'"', b"\xef\xbb\xbf{}", b'{"a":1,"a":2}',
)  # fmt: skip
LINES: tuple[bytes, ...] = (
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 400 Bad", b"HTTP/1.1 401 No", b"HTTP/1.1 404 No",
    b"HTTP/1.1 413 Large", b"HTTP/1.1 422 No", b"HTTP/1.1 429 Busy", b"HTTP/1.1 500 Down", b"HTTP/1.1 503 Down", b"HTTP/1.1 529 Over", b"HTTP/1.1 204 No", b"HTTP/1.1 304 No",
    b"HTTP/1.1 307 There", b"HTTP/1.1 100 Continue", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK", b"HTTP/1.1 101 Switching", b"HTTP/1.1 199 x", b"HTTP/1.1 999 x",
    b"HTTP/1.1 99999 x", b"HTTP/1.1 -1 x", b"HTTP/1.1 2\xb2 x", b"HTTP/2.0 200 OK", b"HTTP/9 200", b"ICY 200 OK", b"", b"\x16\x03\x01", b"HTTP/1.1 200 " + b"x" * 9_000,
    b"HTTP/1.1 200 \xff\x00\x1b", b"HTTP/1.1 200 OK\n",
)  # fmt: skip
HEADERS: tuple[bytes, ...] = (
    b"Content-Length: 0", b"Content-Length: 99", b"Content-Length: -1", b"Content-Length: 9999999999999999999999", b"Content-Length: +3", b"Content-Length: x",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked, chunked", b"Content-Encoding: gzip", b"Content-Encoding: br",
    b"Content-Encoding: \xff", b"Content-Type: text/event-stream", b"Content-Type: application/json; charset=\xff", b"Content-Type: application/json; charset=utf-16",
    b"Retry-After: -5", b"Retry-After: nan", b"Retry-After: 1e999", b"Retry-After: \xb2", "Retry-After: ²".encode(), b"Retry-After: Mon, 01 Jan 0001 00:00:00 -0000",
    b"Retry-After: Mon, 01 Jan 2020 00:00:00 +99999999999999999", b"Retry-After: 1 jan 2020 1:2:999999999999999999999999", b"retry-after-ms: -nan", b"retry-after-ms: " + b"9" * 400,
    b"Location: /", b"Location: http://[::1", b"Location: http://127.0.0.1:1/", b"Location: \xff", b"Location: http://\xff/", b"Location: file:///etc/passwd",
    b"Set-Cookie: a=\xff; Domain=x", b"Set-Cookie: =;;;", b"Connection: upgrade", b"Upgrade: websocket", b" folded: x", b"X: " + b"y" * 9_000, b": x", b"no colon", b"X: \x00", b"X: \r", b"X: a\nY: b",
)  # fmt: skip


_MARK = "\0mark"


def _paths(value: object) -> Iterator[tuple[Any, ...]]:
    yield ()
    children: Iterable[tuple[Any, object]] = ()
    if is_object(value):
        children = value.items()
    elif is_list(value):
        children = enumerate(value)
    for key, child in children:
        yield from ((key, *path) for path in _paths(child))


def _with_mark(value: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return _MARK
    changed = dict(value) if is_object(value) else list(value)
    changed[path[0]] = _with_mark(changed[path[0]], path[1:])
    return changed


def parts_of(template: object) -> list[tuple[bytes, bytes]]:
    """Return the JSON of a template before and after each of its values."""
    mark = json.dumps(_MARK).encode()
    return [
        (before, after)
        for path in _paths(template)
        for before, _, after in [json.dumps(_with_mark(template, path)).encode().partition(mark)]
    ]


CHANGED = tuple(parts for template in TEMPLATES for parts in parts_of(template))


def with_odd(template_parts: Sequence[tuple[bytes, bytes]]) -> st.SearchStrategy[bytes]:
    """Return templates with an odd value in the place of one of their own."""

    def put(parts: tuple[bytes, bytes], value: bytes) -> bytes:
        return parts[0] + value + parts[1]

    return st.builds(put, st.sampled_from(template_parts), st.sampled_from(ODD))


def bodies() -> st.SearchStrategy[bytes]:
    """Return bodies: templates with an odd value in the place of one of their own, events, and any bytes."""
    odd = st.sampled_from(ODD)
    whole = st.sampled_from([json.dumps(template).encode() for template in TEMPLATES])
    changed = with_odd(CHANGED)
    piece = st.one_of(changed, changed, changed, whole, odd, st.binary(max_size=60))
    events = st.lists(piece, max_size=4).map(
        lambda pieces: b"".join(b"data: " + piece + b"\n\n" for piece in pieces)
    )
    chunks = st.lists(piece, max_size=3).map(
        lambda pieces: b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    )
    return st.one_of(piece, piece, piece, piece, events, chunks)


def answers() -> st.SearchStrategy[Answer]:
    """Return whole answers."""
    headers = st.lists(st.sampled_from(HEADERS), max_size=2)
    return st.builds(
        Answer,
        line=st.one_of(st.just(LINES[0]), st.sampled_from(LINES)),
        headers=st.one_of(st.just(()), headers),
        body=bodies(),
    )


@asynccontextmanager
async def answering(data: bytes) -> AsyncGenerator[str]:
    """Serve these bytes to every request, and yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        with anyio.CancelScope(shield=True):
            await server.wait_closed()


async def complete(url: str, **more: Any) -> None:  # noqa: ANN401
    async with painter(url, max_attempts=2, **more) as model:
        await model.complete(call())


async def chat(url: str) -> None:
    async with ChatClient(
        settings(url, max_attempts=1), Accounts(), environment={}, clock=HastyClock()
    ) as client:
        with suppress(openai.APIError):
            await client.create(messages=[{"role": "user", "content": "x"}])


async def stream(url: str) -> None:
    async with HttpTransport(url, {}, 1, max_bytes=1 << 20) as transport:
        texts: list[str] = []
        read = AnswerStream(texts.append)
        with model_failures():
            await transport.post(EncodedRequest("/x", b"{}", on_line=read.add), 20)
            read.answer([1])


async def gateway(url: str) -> None:
    async with GatewayClient(url, "token", patience=0) as client:
        with suppress(GatewayError):
            begun = await client.begin()
            if begun is not None:
                await client.end(begun, EpisodeOutcome(reward=1.0))
        with suppress(GatewayError):
            await client.ended()
        await client.calls("1", 1)


async def environment(url: str) -> None:
    async with EnvironmentService(url, tries=1) as service:
        with suppress(EnvironmentFailure):
            await service.task_ids("default")
        with suppress(EnvironmentFailure):
            await service.evaluate("i")
        await service.create("default", "1")


async def engine(url: str) -> None:
    async with EngineControl(url) as control:
        for request in (control.version, control.is_paused, control.model, partial(control.load, "/x")):
            with suppress(AgentFlowError):
                await request()
        with suppress(AgentFlowError):
            await control.draw("m", (1, 2), 3)
        await control.score("m", (1, 2))


CLIENTS: dict[str, Callable[[str], Awaitable[None]]] = {
    "chat completions": complete,
    "without a schema": partial(complete, structured="known"),
    "tokens": partial(complete, tokens=True),
    "exact tokens": partial(complete, tokens="exact"),
    "messages": partial(complete, api="anthropic", api_key="k"),
    "gemini": partial(complete, api="gemini", api_key="k"),
    "ollama": partial(complete, api="ollama"),
    "openai": chat,
    "events": stream,
    "gateway": gateway,
    "environment": environment,
    "openenv": openenv,
    "engine": engine,
    "models of an engine": engine_models,
    "embeddings": embeddings,
    "vision": vision,
}


async def check(client: str, answer: Answer) -> None:
    async with answering(answer.data) as url:
        with anyio.fail_after(60):
            try:
                await CLIENTS[client](url)
            except AgentFlowError as error:
                assert "\n" not in str(error)


DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
FAULTS: tuple[tuple[str, Answer], ...] = (
    *((client, Answer(body=DEEP)) for client in ("chat completions", "messages", "openenv", "embeddings", "vision", "engine", "models of an engine", "gateway")),
    ("chat completions", Answer(b"HTTP/1.1 400 Bad", body=DEEP)),
    ("chat completions", Answer(body=b'{"choices":[{"message":{"content":"\xff"}}]}')),
    ("messages", Answer(b"HTTP/1.1 404 No", body=b'"\xff"')),
    ("tokens", Answer(b"HTTP/1.1 429 Busy", [b"Retry-After: 1 jan 2020 1:2:999999999999999999999999"], b"")),
    ("openai", Answer(b"HTTP/1.1 401 No", [b"Set-Cookie: a=\xff"])),
    ("openai", Answer(body=json.dumps({**CHAT, "id": True}).encode())),
    ("engine", Answer(body=b"null")),
    ("gateway", Answer(b"HTTP/1.1 429 Busy", ["Retry-After: ²".encode()], b'{"error":{"message":"no","code":"bad"}}')),
    ("gateway", Answer(body=json.dumps({**BEGUN, "client": "two\nlines"}).encode())),
)  # fmt: skip

(
    test_any_answer_is_a_result_or_an_error_of_one_line,
    test_any_answer_is_a_result_or_an_error_of_one_line_long,
) = forms(
    check,
    short=320,
    examples=[{"client": client, "answer": answer} for client, answer in FAULTS],
    client=st.sampled_from(list(CLIENTS)),
    answer=answers(),
)
