"""HTTP server of the fake endpoint."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from statistics import median
from time import perf_counter
from typing import Any, BinaryIO, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Struct

from agentflow.testing.endpoint._play import embed, play, use_tool
from agentflow.testing.endpoint._prompt import FakeToolCall, Prompt, read_prompt
from agentflow.testing.endpoint._token_apis import (
    FakeWeights,
    GenerateBody,
    decoded,
    derender,
    events_of,
    logprobs_of,
    render,
    samples_of,
    tokens_of_chat,
)


class EndpointFault(StrEnum):
    """Fault of an answer."""

    BUSY = "busy"
    """429 without `Retry-After`."""
    BUSY_UNTIL = "busy_until"
    """429, with `Retry-After`."""
    BROKEN = "broken"
    """500."""
    SILENT = "silent"
    """Connection closed without an answer."""
    GARBAGE = "garbage"
    """Answer whose text is not JSON."""
    SHAPE = "shape"
    """Answer whose text is JSON of another shape."""


_FAULTS = tuple(EndpointFault)


class FaultPlan(Struct, frozen=True):
    """Plan of failing calls."""

    share: float = 0.0
    """Share of failing calls, 0 to 1."""
    seed: int = 1
    """Seed that selects the failing calls."""
    down_after: int | None = None
    """Number of calls after which none is answered."""

    def of(self, call: int) -> EndpointFault | None:
        """Return the fault of a call, counted from 1."""
        if self.down_after is not None and call > self.down_after:
            return EndpointFault.SILENT
        if not self.share:
            return None
        dice = blake2b(f"{self.seed} {call}".encode(), digest_size=8).digest()
        if int.from_bytes(dice[:4], "big") / 2**32 >= self.share:
            return None
        return _FAULTS[dice[4] % len(_FAULTS)]


_JSON = {"Content-Type": "application/json"}
Answering: TypeAlias = Callable[[bytes], tuple[str, bytes | list[bytes] | web.Response]]
"""Function from the body of a request to the beginning of its conversation and the answer: JSON, events or an error."""
_STRENGTH = ("text", "json_object", "json_schema")


class EndpointConfig(Struct, frozen=True, kw_only=True):
    """Configuration of the fake endpoint."""

    delay_ms: float = 0.0
    """Delay of each answer."""
    jitter_ms: float = 0.0
    """Maximum additional delay; the actual one follows from the request and its number."""
    faults: FaultPlan = FaultPlan()
    """Calls that fail."""
    same: bool = False
    """Propose the same action in every plan."""
    structured: str = "json_schema"
    """Strictest `response_format` to accept: `json_schema`, `json_object` or `text`."""
    tool_turns: int = 3
    """Number of tool calls before an answer, if tools are offered."""
    hold_after: int | None = None
    """Number of calls after which later ones, and new weights, wait for a request to `/release`; `None` holds nothing.
    `/hold?calls=N` holds again after N more calls."""
    model: str = "fake"
    """Name in the list of models."""
    weights: str = ""
    """Folder of the weights that it starts with."""


class _AnswerMessage(Struct, omit_defaults=True):
    role: str
    content: str
    tool_calls: list[FakeToolCall] | None = None


class _Choice(Struct, omit_defaults=True):
    index: int
    message: _AnswerMessage
    finish_reason: str
    logprobs: dict[str, list[dict[str, Any]]] | None = None
    token_ids: list[int] | None = None


class _FakeCompletion(Struct, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[_Choice]
    usage: dict[str, int]
    prompt_token_ids: list[int] | None = None


class _Texts(Struct):
    input: str | list[str]
    encoding_format: str = "float"


class _TokenIds(Struct):
    tokens: list[int]


class FakeEndpoint:
    """The fake endpoint: answers and counts requests."""

    def __init__(self, config: EndpointConfig, log: BinaryIO | None = None) -> None:
        self._config = config
        self._log = log
        self._encoder = msgspec.json.Encoder()
        self._calls = self._in_flight = self._most = self._faults = self._repeated = 0
        self._hold_after = math.inf if config.hold_after is None else config.hold_after
        self._released = asyncio.Event()
        self._weights = FakeWeights(config.weights)
        self._resumed = asyncio.Event()
        self._answered: set[bytes] = set()
        self._seen: Counter[bytes] = Counter()
        self._plan = ""
        self._came: dict[str, float] = {}
        self._turns: list[float] = []

    async def handle(self, request: web.BaseRequest, body: bytes | None = None) -> web.StreamResponse:
        """Answer one request.

        :param body: its body, if it was read already.
        """
        if body is None:
            body = await request.content.read()
        match request.path:
            case "/v1/chat/completions":
                return await self._count(request, body, self._chat)
            case "/inference/v1/generate":
                return await self._count(request, body, self._generated)
            case (
                "/v1/chat/completions/render" | "/v1/chat/completions/derender" | "/tokenize" | "/detokenize"
            ):
                return self._tokens(request.path, body)
            case "/v1/embeddings":
                return self._embed(body)
            case "/v1/models":
                model_entry = {"id": self._config.model, "object": "model", "root": self._config.weights}
                return self._reply({"object": "list", "data": [model_entry]})
            case "/stats":
                pass
            case "/hold":
                self._hold_after = self._calls + int(request.query.get("calls", "0"))
            case "/release":
                self._hold_after = math.inf
                self._released.set()
                self._released = asyncio.Event()
            case _:
                return await self._control(request.path, body)
        return self._reply(self.statistics())

    async def _control(self, path: str, body: bytes) -> web.Response:
        """Answer a request about weights."""
        if path == "/collective_rpc" and self._calls >= self._hold_after:
            await self._released.wait()
        answer = self._weights.answer(path, body)
        if answer is None:
            return self._refuse(404, f"no such path: {path}", "not_found")
        if not self._weights.paused:
            self._resumed.set()
            self._resumed = asyncio.Event()
        return self._reply(answer)

    def statistics(self) -> dict[str, int]:
        """Return counters; `median_turn_us` is the time in microseconds from a request to the next one that extends it."""
        return {
            "calls": self._calls,
            "faults": self._faults,
            "in_flight": self._in_flight,
            "max_concurrent": self._most,
            "distinct_bodies": len(self._seen),
            "repeated_bodies": self._repeated,
            "most_per_body": max(self._seen.values(), default=0),
            "median_turn_us": int(1e6 * median(self._turns)) if self._turns else 0,
        }

    async def _count(self, request: web.BaseRequest, body: bytes, answer: Answering) -> web.StreamResponse:
        self._calls += 1
        self._in_flight += 1
        self._most = max(self._most, self._in_flight)
        try:
            return await self._answered_or_not(request, body, self._calls, answer)
        finally:
            self._in_flight -= 1

    async def _answered_or_not(
        self, request: web.BaseRequest, body: bytes, call: int, answering: Answering
    ) -> web.StreamResponse:
        arrived = perf_counter()
        self._note(body)
        name = blake2b(body, digest_size=16).digest()
        self._seen[name] += 1
        # Asked again although it was answered: a caller paid twice.
        self._repeated += name in self._answered
        fault = self._config.faults.of(call)
        delay = self._config.delay_ms + self._config.jitter_ms * (
            blake2b(name + str(call).encode(), digest_size=1).digest()[0] / 255
        )
        if delay:
            await asyncio.sleep(delay / 1000)
        if call > self._hold_after:
            await self._released.wait()
        if self._weights.paused:
            await self._resumed.wait()
        if fault is not None:
            self._faults += 1
            return self._fail(fault, request)
        try:
            begin, answer = answering(body)
        except (msgspec.MsgspecError, LookupError, TypeError) as error:
            return self._refuse(400, f"invalid request: {error}", "invalid_request")
        if isinstance(answer, web.Response):
            return answer
        self._answered.add(name)
        if begin in self._came:
            self._turns.append(arrived - self._came[begin])
        self._came[begin] = arrived
        if isinstance(answer, bytes):
            return web.Response(body=answer, headers=_JSON)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in answer:
            await response.write(event)
        await response.write_eof()
        return response

    def _chat(self, body: bytes) -> tuple[str, bytes | web.Response]:
        prompt = read_prompt(body)
        return prompt.begin, self._answer(prompt)

    def _generated(self, body: bytes) -> tuple[str, bytes | list[bytes]]:
        message = msgspec.json.decode(body, type=GenerateBody)
        samples = samples_of(message, self._config.tool_turns)
        begin = str(message.token_ids[:64])
        if message.stream:
            return begin, events_of(samples[0], message, self._weights.version)
        choices = [sample.choice(index, self._weights.version) for index, sample in enumerate(samples)]
        whole = {"model": message.model, "prompt_token_ids": message.token_ids, "choices": choices}
        return begin, self._encoder.encode(whole)

    def _tokens(self, path: str, body: bytes) -> web.Response:
        try:
            if path == "/detokenize":
                return self._reply({"prompt": decoded(msgspec.json.decode(body, type=_TokenIds).tokens)})
            if path.endswith("/derender"):
                return self._reply(derender(body))
            return self._reply(render(body, tokenizes=path == "/tokenize"))
        except (msgspec.MsgspecError, ValueError) as error:
            return self._refuse(400, f"invalid request: {error}", "invalid_request")

    def _note(self, body: bytes) -> None:
        if self._log is not None:
            # Indented JSON has many lines, which makes streaming visible.
            self._log.write(body.replace(b"\n", b" ") + b"\n")
            self._log.flush()

    def _answer(self, prompt: Prompt) -> bytes | web.Response:
        if _STRENGTH.index(prompt.form) > _STRENGTH.index(self._config.structured):
            return self._refuse(400, f"response_format.type {prompt.form} is not supported", "invalid_value")
        if prompt.tools and prompt.turns < self._config.tool_turns:
            return self._call(prompt)
        text = play(prompt)
        if self._config.same and prompt.name == "plan":
            text = self._plan = self._plan or text
        completion = _complete(text, prompt.model, prompt.words)
        return self._encoder.encode(_with_tokens(completion, prompt) if prompt.exact else completion)

    def _call(self, prompt: Prompt) -> bytes:
        name, arguments = use_tool(prompt)
        completion = _complete("", prompt.model, prompt.words)
        call = FakeToolCall.of(f"call_{prompt.hash:016x}", name, arguments)
        completion.choices[0].message.tool_calls = [call]
        completion.choices[0].finish_reason = "tool_calls"
        return self._encoder.encode(_with_tokens(completion, prompt) if prompt.exact else completion)

    def _fail(self, fault: EndpointFault, request: web.BaseRequest) -> web.StreamResponse:
        match fault:
            case EndpointFault.BUSY:
                return self._refuse(429, "slow down", "rate_limit_exceeded")
            case EndpointFault.BUSY_UNTIL:
                soon = {"Retry-After": "1", "Retry-After-Ms": "20"}
                return self._refuse(429, "slow down", "rate_limit_exceeded", soon)
            case EndpointFault.BROKEN:
                return self._refuse(500, "something broke", "server_error")
            case EndpointFault.SILENT:
                if request.transport is not None:
                    request.transport.close()
                return web.Response()
            case EndpointFault.GARBAGE:
                text = 'Certainly! {"proposals": ['
            case EndpointFault.SHAPE:
                text = '{"surprise": true}'
        return web.Response(body=self._encoder.encode(_complete(text, "fake", 1)), headers=_JSON)

    def _refuse(
        self, status: int, message: str, code: str, headers: dict[str, str] | None = None
    ) -> web.Response:
        body = {"error": {"message": message, "type": code, "param": None, "code": code}}
        return web.Response(
            status=status, body=self._encoder.encode(body), headers={**_JSON, **(headers or {})}
        )

    def _reply(self, body: dict[str, Any]) -> web.Response:
        return web.Response(body=self._encoder.encode(body), headers=_JSON)

    def _embed(self, body: bytes) -> web.Response:
        try:
            message = msgspec.json.decode(body, type=_Texts)
        except msgspec.MsgspecError as error:
            return self._refuse(400, f"invalid request: {error}", "invalid_request")
        texts = [message.input] if isinstance(message.input, str) else message.input
        vectors = [embed(text, as_base64=message.encoding_format == "base64") for text in texts]
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ]
        read = sum(map(len, texts)) // 4
        usage = {"prompt_tokens": read, "total_tokens": read}
        return self._reply({"object": "list", "model": "fake", "data": data, "usage": usage})


def _complete(text: str, model: str, words: int) -> _FakeCompletion:
    written = len(text) // 4 + 1
    usage = {"prompt_tokens": words, "completion_tokens": written, "total_tokens": words + written}
    choice = _Choice(0, _AnswerMessage("assistant", text), "stop")
    name = blake2b(text.encode(), digest_size=6).hexdigest()
    return _FakeCompletion(f"chatcmpl-{name}", "chat.completion", 0, model, [choice], usage)


def _with_tokens(completion: _FakeCompletion, prompt: Prompt) -> _FakeCompletion:
    """Return the completion with its tokens."""
    choice = completion.choices[0]
    message = choice.message
    completion.prompt_token_ids, sampled = tokens_of_chat(prompt, message.content, message.tool_calls or [])
    choice.token_ids = sampled
    values = zip(sampled, logprobs_of(sampled), strict=True)
    choice.logprobs = {"content": [{"token": str(id), "logprob": value} for id, value in values]}
    return completion
