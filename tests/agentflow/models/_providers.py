"""Fake endpoints of providers: each has its own API, and refuses undocumented fields.

What they answer was compared on 2026-11-29 with copies of these pages; no provider was called:

- OpenAI: https://docs.rs/crate/openai-client-base/0.14.0 (generated from its OpenAPI description), for `choices`
- Anthropic: https://raw.githubusercontent.com/anthropics/anthropic-sdk-python/main/src/anthropic/types/message.py
- Gemini: a wrong key is 400, as in https://github.com/continuedev/continue/issues/9330
- Ollama: https://www.w3cschool.cn/ollamadocs/ollamadocs-api-chat.html (of version 0.40.12)
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import msgspec
from aiohttp import web
from msgspec import Struct, field

from agentflow.models import ApiName

KEY = "the-key"


class Turn(Struct, frozen=True):
    """Next answer of the fake model."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Id, name and arguments as JSON; APIs without ids leave them out."""
    finish: Literal["stop", "length", "filtered"] = "stop"
    state: str = ""
    """Data that the provider expects back with the first call."""


class Wrong(Exception):
    """The request is invalid in this API."""

    def __init__(self, said: str, status: int = 400) -> None:
        super().__init__(said)
        self.status = status


class Speech(Protocol):
    """API of one provider."""

    def check(self, path: str, headers: Mapping[str, str]) -> None: ...

    def read(self, body: bytes) -> None: ...

    def says(self, turn: Turn) -> dict[str, Any]: ...

    def refuses(self, status: int, said: str) -> dict[str, Any]: ...


class Strict(Struct, forbid_unknown_fields=True):
    """Refuses other fields."""


class Camel(Struct, forbid_unknown_fields=True, rename="camel"):
    """Refuses other fields and other spellings."""


def _expect(right: bool, said: str, status: int = 400) -> None:
    if not right:
        raise Wrong(said, status)


# --- OpenAI and Azure


class _Url(Strict):
    url: str


class _TextPart(Strict, tag="text"):
    text: str


class _ImagePart(Strict, tag="image_url"):
    image_url: _Url


class _Function(Strict):
    name: str
    arguments: str


class _Call(Strict):
    id: str
    type: Literal["function"]
    function: _Function


class _System(Strict, tag="system", tag_field="role"):
    content: str


class _User(Strict, tag="user", tag_field="role"):
    content: str | list[_TextPart | _ImagePart]


class _Assistant(Strict, tag="assistant", tag_field="role"):
    content: str | None
    tool_calls: list[_Call] = []
    reasoning_content: str = ""


class _Tool(Strict, tag="tool", tag_field="role"):
    content: str
    tool_call_id: str


class _Described(Strict):
    name: str
    description: str
    parameters: dict[str, Any]


class _Offered(Strict):
    type: Literal["function"]
    function: _Described


class _Schema(Strict):
    name: str
    schema: dict[str, Any]
    strict: bool = False


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _Chat(Strict):
    model: str
    messages: list[_System | _User | _Assistant | _Tool]
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 0
    max_completion_tokens: int = 0
    seed: int = 0
    stop: list[str] = []
    response_format: _Format | None = None
    tools: list[_Offered] = []
    tool_choice: Literal["auto", "none", "required"] = "auto"


class OpenAi:
    """Chat completions."""

    path = "/chat/completions"

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        _expect(path == self.path, f"no such path: {path}", 404)
        _expect(headers.get("authorization") == f"Bearer {KEY}", "no such key", 401)

    def read(self, body: bytes) -> None:
        chat = msgspec.json.decode(body, type=_Chat)
        open_calls: set[str] = set()
        for message in chat.messages:
            if isinstance(message, _Tool):
                _expect(message.tool_call_id in open_calls, "a tool's message answers no call")
                open_calls.discard(message.tool_call_id)
                continue
            _expect(not open_calls, "a call has no tool's message")
            if isinstance(message, _Assistant):
                open_calls = {call.id for call in message.tool_calls}
        _expect(not open_calls, "a call has no tool's message")

    def says(self, turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
        if turn.state:
            message["reasoning_content"] = turn.state
        if turn.calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
                for one, name, arguments in turn.calls
            ]
        finish = {"stop": "tool_calls" if turn.calls else "stop", "length": "length"}
        choice = {"index": 0, "message": message, "finish_reason": finish.get(turn.finish, "content_filter")}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {
            "id": "1",
            "object": "chat.completion",
            "model": "painter-1",
            "choices": [choice],
            "usage": usage,
        }

    def refuses(self, status: int, said: str) -> dict[str, Any]:
        return {"error": {"message": said, "type": "invalid_request_error", "code": None, "param": None}}


class Azure(OpenAi):
    """Chat completions of a deployment."""

    path = "/openai/deployments/painter/chat/completions?api-version=2025-04-01-preview"

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        _expect(path == self.path, "Resource not found", 404)
        _expect(headers.get("api-key") == KEY and "authorization" not in headers, "Access denied", 401)


# --- Anthropic


class _Base64(Strict, tag="base64"):
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str


class _AText(Strict, tag="text"):
    text: str


class _AImage(Strict, tag="image"):
    source: _Base64


class _Use(Strict, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class _Result(Strict, tag="tool_result"):
    tool_use_id: str
    content: str | list[_AText | _AImage]
    is_error: bool = False


class _Thinking(Strict, tag="thinking"):
    thinking: str
    signature: str


class _AMessage(Strict):
    role: Literal["user", "assistant"]
    content: str | list[_AText | _AImage | _Use | _Result | _Thinking]


class _ATool(Strict):
    name: str
    description: str
    input_schema: dict[str, Any]


class _AFormat(Strict):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _Output(Strict):
    format: _AFormat


class _Chosen(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""


class _Messages(Strict):
    model: str
    max_tokens: int
    messages: list[_AMessage]
    system: str = ""
    stop_sequences: list[str] = []
    tools: list[_ATool] = []
    tool_choice: _Chosen | None = None
    output_config: _Output | None = None


class _Sampled(_Messages):
    temperature: float = 1.0
    top_p: float = 1.0


class Anthropic:
    """Messages."""

    path = "/messages"

    def __init__(self, *, grammars: bool = True) -> None:
        self._grammars = grammars
        self._asked = _Messages("", 0, [])
        self._kind: type[_Messages] = _Messages

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        _expect(path == self.path, "Not found", 404)
        _expect(headers.get("x-api-key") == KEY and "authorization" not in headers, "invalid x-api-key", 401)
        versions: dict[str, type[_Messages]] = {"2026-10-21": _Messages, "2023-06-01": _Sampled}
        version = headers.get("anthropic-version", "")
        _expect(version in versions, f"anthropic-version: {version} is not a valid version")
        self._kind = versions[version]

    def read(self, body: bytes) -> None:
        asked = self._asked = msgspec.json.decode(body, type=self._kind)
        uses: list[str] = []
        for message in asked.messages:
            blocks = [] if isinstance(message.content, str) else message.content
            _expect(
                all(block.text for block in blocks if isinstance(block, _AText)), "text must be non-empty"
            )
            results = [block.tool_use_id for block in blocks if isinstance(block, _Result)]
            _expect(sorted(results) == sorted(uses), "each tool_use must have a tool_result right after it")
            leading = [isinstance(block, _Result) for block in blocks]
            _expect(leading == sorted(leading, reverse=True), "tool_result blocks come first")
            uses = [block.id for block in blocks if isinstance(block, _Use)]
        _expect(not uses, "each tool_use must have a tool_result right after it")
        if asked.output_config is not None:
            _expect(self._grammars, "output_config.format: this model does not support structured outputs")
            expect_grammar(asked.output_config.format.schema)

    def says(self, turn: Turn) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if turn.state:
            content.append({"type": "thinking", "thinking": "Hm.", "signature": turn.state})
        chosen = self._asked.tool_choice
        if chosen is not None and chosen.type == "tool":
            given = {
                "type": "tool_use",
                "id": "t0",
                "name": chosen.name,
                "input": msgspec.json.decode(turn.text),
            }
            content.append(given)
        elif turn.text:
            content.append({"type": "text", "text": turn.text})
        for one, name, arguments in turn.calls:
            given = {"type": "tool_use", "id": one, "name": name, "input": msgspec.json.decode(arguments)}
            content.append({**given, "caller": {"type": "direct"}})
        reason = "tool_use" if turn.calls or chosen else "end_turn"
        reason = {"stop": reason, "length": "max_tokens"}.get(turn.finish, "refusal")
        usage = {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 5}
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "painter-1",
            "content": content,
            "stop_reason": reason,
            "stop_details": None,
            "usage": usage,
        }

    def refuses(self, status: int, said: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": said}}


_GRAMMAR = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "description", "enum", "format", "items",
    "minItems", "properties", "required", "title", "type",
}  # fmt: skip


def expect_grammar(schema: dict[str, Any]) -> None:
    unknown = schema.keys() - _GRAMMAR
    _expect(not unknown, f"output_config.format.schema: {sorted(unknown)} is not supported")
    _expect(schema.get("minItems", 0) in (0, 1), "output_config.format.schema: minItems is not supported")
    if schema.get("type") == "object":
        _expect(
            schema.get("additionalProperties") is False,
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        )
    inner = [
        *schema.get("properties", {}).values(),
        *schema.get("$defs", {}).values(),
        *schema.get("anyOf", []),
    ]
    for one in [*inner, *([schema["items"]] if "items" in schema else [])]:
        expect_grammar(one)


# --- Gemini


class _Data(Camel):
    mime_type: str
    data: str


class _GCall(Camel):
    name: str
    args: dict[str, Any]
    id: str = ""


class _GReply(Camel):
    name: str
    response: dict[str, Any]
    id: str = ""


class _GPart(Camel):
    text: str | None = None
    inline_data: _Data | None = None
    function_call: _GCall | None = None
    function_response: _GReply | None = None
    thought_signature: str | None = None


class _GContent(Camel):
    role: Literal["user", "model"]
    parts: list[_GPart]


class _GSystem(Camel):
    parts: list[_GPart]


class _Config(Camel):
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_output_tokens: int = 0
    seed: int = 0
    stop_sequences: list[str] = []
    response_mime_type: Literal["text/plain", "application/json"] = "text/plain"
    response_json_schema: dict[str, Any] | None = None


class _GFunction(Camel):
    name: str
    description: str
    parameters_json_schema: dict[str, Any]


class _GTools(Camel):
    function_declarations: list[_GFunction]


class _Calling(Camel):
    mode: Literal["AUTO", "ANY", "NONE"]


class _GConfig(Camel):
    function_calling_config: _Calling


class _Generate(Camel):
    contents: list[_GContent]
    system_instruction: _GSystem | None = None
    generation_config: _Config = field(default_factory=_Config)
    tools: list[_GTools] = []
    tool_config: _GConfig | None = None


class Gemini:
    """`generateContent`."""

    path = "/models/painter:generateContent"

    def __init__(self, *, signs: bool = True) -> None:
        self._signs = signs

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        _expect(path == self.path, "models/painter is not found", 404)
        # The real one says so with 400 too.
        _expect(headers.get("x-goog-api-key") == KEY, "API key not valid. Please pass a valid API key.")
        _expect("authorization" not in headers, "Expected OAuth 2 access token", 401)

    def read(self, body: bytes) -> None:
        asked = msgspec.json.decode(body, type=_Generate)
        calls: list[str] = []
        for content in asked.contents:
            for part in content.parts:
                said = [part.text, part.inline_data, part.function_call, part.function_response]
                _expect(
                    sum(one is not None for one in said) == 1, "parts.data: oneof field must have one value"
                )
            replies = [part.function_response.id for part in content.parts if part.function_response]
            _expect(
                replies == calls, "function response parts must equal function call parts of the last turn"
            )
            called = [part for part in content.parts if part.function_call]
            calls = [part.function_call.id for part in called if part.function_call]
            signed = not called or called[0].thought_signature or not self._signs
            _expect(bool(signed), "Function call is missing a thought_signature")
        config = asked.generation_config
        if config.response_json_schema is not None:
            _expect(
                config.response_mime_type == "application/json", "response_mime_type must be application/json"
            )
            _expect(b'"const":' not in body, "response_json_schema: const is not supported")

    def says(self, turn: Turn) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [{"text": "Hm.", "thought": True}]
        if turn.text:
            parts.append({"text": turn.text})
        for number, (_, name, arguments) in enumerate(turn.calls):
            call = {"functionCall": {"name": name, "args": msgspec.json.decode(arguments)}}
            parts.append({**call, "thoughtSignature": turn.state} if turn.state and not number else call)
        reason = {"stop": "STOP", "length": "MAX_TOKENS"}.get(turn.finish, "SAFETY")
        content = {"role": "model", "parts": parts}
        used = {
            "promptTokenCount": 10,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 2,
            "totalTokenCount": 15,
        }
        candidates = [{"content": content, "finishReason": reason, "index": 0}]
        return {"candidates": candidates, "usageMetadata": used, "modelVersion": "painter-1"}

    def refuses(self, status: int, said: str) -> dict[str, Any]:
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.5s"}
        error = {"code": status, "message": said, "status": "INVALID_ARGUMENT"}
        return {"error": {**error, "details": [retry]} if status == 429 else error}


# --- Ollama


class _OFunction(Strict):
    name: str
    arguments: dict[str, Any]


class _OCall(Strict):
    function: _OFunction


class _OMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    images: list[str] = []
    tool_calls: list[_OCall] = []
    tool_name: str = ""


class _Options(Strict):
    temperature: float = 0.8
    top_p: float = 0.9
    top_k: int = 40
    num_predict: int = -1
    seed: int = 0
    stop: list[str] = []


class _OChat(Strict):
    model: str
    messages: list[_OMessage]
    stream: Literal[False]
    format: Literal["json"] | dict[str, Any] | None = None
    options: _Options = field(default_factory=_Options)
    tools: list[_Offered] = []


class Ollama:
    """Ollama's chat API."""

    path = "/api/chat"

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        _expect(path == self.path, "404 page not found", 404)
        _expect(headers.get("authorization") == f"Bearer {KEY}", "unauthorized", 401)

    def read(self, body: bytes) -> None:
        chat = msgspec.json.decode(body, type=_OChat)
        for message in chat.messages:
            _expect((message.role == "tool") == bool(message.tool_name), "a tool's message names the tool")

    def says(self, turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": turn.text, "thinking": "Hm."}
        if turn.calls:
            message["tool_calls"] = [
                {"function": {"name": name, "arguments": msgspec.json.decode(arguments)}}
                for _, name, arguments in turn.calls
            ]
        reason = "length" if turn.finish == "length" else "stop"
        counted = {"prompt_eval_count": 10, "eval_count": 5, "total_duration": 1}
        return {"model": "painter-1", "message": message, "done": True, "done_reason": reason, **counted}

    def refuses(self, status: int, said: str) -> dict[str, Any]:
        return {"error": said}


SPEECHES: dict[ApiName, type[OpenAi | Azure | Anthropic | Gemini | Ollama]] = {
    "openai": OpenAi,
    "azure": Azure,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "ollama": Ollama,
}


class Provider:
    """A fake that answers with one turn after the other and repeats the last; a number is a status."""

    def __init__(self, speech: Speech, turns: Sequence[Turn | int]) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._speech = speech
        self._turns = turns

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        turn = self._turns[min(len(self.bodies), len(self._turns) - 1)]
        self.bodies.append(msgspec.json.decode(body))
        try:
            self._speech.check(request.path_qs, self.headers[-1])
            self._speech.read(body)
            if isinstance(turn, int):
                raise Wrong("no", turn)
        except Wrong as wrong:
            return web.json_response(self._speech.refuses(wrong.status, str(wrong)), status=wrong.status)
        except msgspec.MsgspecError as error:
            return web.json_response(self._speech.refuses(400, str(error)), status=400)
        return web.json_response(self._speech.says(turn))


@asynccontextmanager
async def provider(speech: Speech, *turns: Turn | int) -> AsyncGenerator[Provider]:
    """Serve the fake."""
    told = Provider(speech, turns or (Turn('{"name": "red", "shade": 3}'),))
    runner = web.ServerRunner(web.Server(told.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address: tuple[str, int] = runner.addresses[0]
    told.url = f"http://127.0.0.1:{address[1]}"
    try:
        yield told
    finally:
        await runner.cleanup()
