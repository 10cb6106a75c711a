"""Messages API, in Anthropic's format."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from agentflow.gateway._dialect import (
    ConversationBuilder,
    ParsedRequest,
    RequestContext,
    RequestImages,
    StrictBody,
    arguments_object,
    cached_tokens,
    checked,
    convert,
    decode,
    encode,
    event,
    extra_sampling,
    invalid,
    texts_of,
    tool_call,
    tool_spec,
    total_usage,
    unsent,
    unsupported,
)
from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import Completion, ImagePart, Sampling, TextPart, ToolCall, ToolSpec

_SIGNATURE = "agentflow"
"""Signature of thinking; clients send it back unchanged."""
_BILLING = "x-anthropic-billing-header:", re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
_TOTAL_TOKENS = (
    "<total_tokens>",
    re.compile(r"^[ \t]*<total_tokens>[^<\n]*</total_tokens>[ \t]*\n?", re.MULTILINE),
)
"""Lines that Claude Code changes in each request, and what is in them: with them no prompt would continue an earlier one."""
_CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""Prefixes of tools that the client runs and describes by their type only."""


class _TextBlock(StrictBody, tag="text"):
    text: str
    cache_control: object = None
    citations: object = None


class _ThinkingBlock(StrictBody, tag="thinking"):
    thinking: str
    signature: str = ""


class _RedactedThinking(StrictBody, tag="redacted_thinking"):
    data: str


class _ToolUse(StrictBody, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: object = None
    caller: object = None
    toolset_name: object = None


class _ToolReference(StrictBody, tag="tool_reference"):
    tool_name: str
    cache_control: object = None


class _Base64Source(StrictBody, tag="base64"):
    media_type: str
    data: str


class _UrlSource(StrictBody, tag="url"):
    url: str


class _FileSource(StrictBody, tag="file"):
    file_id: str


class _ImageBlock(StrictBody, tag="image"):
    source: _Base64Source | _UrlSource | _FileSource
    cache_control: object = None


class _DocumentBlock(Struct, tag="document"):
    pass


class _SearchResultBlock(Struct, tag="search_result"):
    pass


_Shown = _TextBlock | _ToolReference | _ImageBlock | _DocumentBlock | _SearchResultBlock


class _ToolResult(StrictBody, tag="tool_result"):
    tool_use_id: str
    content: str | list[_Shown] | None = None
    is_error: bool | None = None
    cache_control: object = None
    toolset_name: object = None


_Block = (
    _TextBlock
    | _ThinkingBlock
    | _RedactedThinking
    | _ToolUse
    | _ToolReference
    | _ImageBlock
    | _DocumentBlock
    | _SearchResultBlock
    | _ToolResult
)


class _AnthropicMessage(StrictBody):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _AnthropicTool(StrictBody):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: str | None = None
    allowed_callers: object = None
    cache_control: object = None
    defer_loading: object = None
    eager_input_streaming: object = None
    input_examples: object = None
    strict: object = None


class _ToolChoice(StrictBody):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _OutputFormat(StrictBody):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _OutputConfig(StrictBody):
    format: _OutputFormat | None = None
    effort: object = None
    task_budget: object = None


class MessagesBody(StrictBody):
    """Body of a request to `/v1/messages` and `/v1/messages/count_tokens`."""

    model: str
    messages: list[_AnthropicMessage]
    max_tokens: int | None = None
    system: str | list[_TextBlock] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: _ToolChoice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    output_config: _OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: object = None
    context_management: object = None
    diagnostics: object = None
    inference_geo: object = None
    metadata: object = None
    service_tier: object = None
    speed: object = None
    thinking: object = None
    compaction: object = None
    container: object = None
    fallbacks: object = None
    mcp_servers: object = None
    thread: object = None

    IGNORED: ClassVar[tuple[str, ...]] = (
        "cache_control", "context_management", "diagnostics", "inference_geo", "metadata", "service_tier", "speed",
        "thinking",
    )  # fmt: skip
    REFUSED: ClassVar[Mapping[str, str]] = {
        "compaction": "shorten the conversation in the client",
        "container": "run code in the client",
        "fallbacks": "leave it out; the key belongs to one model",
        "mcp_servers": "call them in the client, and offer their tools",
        "thread": "send the whole conversation",
    }


_DECODER = msgspec.json.Decoder(MessagesBody)
_BODY = (
    MessagesBody, _AnthropicMessage, _TextBlock, _ToolUse, _ToolResult, _ThinkingBlock, _RedactedThinking, _ToolReference, _ToolChoice, _ImageBlock, _Base64Source,
    _OutputConfig, _OutputFormat,
)  # fmt: skip


class MessagesApi:
    """Messages: `/v1/messages` and `/v1/messages/count_tokens`."""

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse the body of a request."""
        parsed = self.parse_prompt(body, context)
        if parsed.call.sampling.max_tokens is None:
            raise invalid("max_tokens is missing; add it")
        return parsed

    def parse_prompt(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse the body of a request whose tokens are only counted: it needs no `max_tokens`."""
        del context
        request = decode(body, _DECODER, _BODY)
        ignored = [*request.ignored(), *_ignored_inside(request)]
        lines = _VolatileLines()
        builder = ConversationBuilder()
        _add_system(builder, request.system, lines)
        for number, message in enumerate(request.messages):
            _add_message(builder, message, f"messages[{number}]", lines)
        if not request.messages or builder.messages[-1].role == "assistant":
            raise invalid("messages: the last one must be the user's; an answer can't be prefilled")
        tools = list(_tools(request.tools or [], ignored))
        choice, output = request.tool_choice, request.output_config
        call = GatewayCall(
            dialect="messages",
            messages=builder.messages,
            images=builder.images.data,
            tools=tuple(tools),
            tool_choice=_choice(choice) if choice else "auto",
            sampling=Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                max_tokens=request.max_tokens,
                stop=tuple(request.stop_sequences or ()),
                extra=extra_sampling(request),
            ),
            schema=output.format.schema if output and output.format else None,
            template=request.chat_template_kwargs or {},
            stream=bool(request.stream),
            removed=lines.removed,
        )
        reply = MessagesReply(request.model)
        return ParsedRequest(call=checked(call), model=request.model, reply=reply, ignored=tuple(ignored))

    def failure(self, error: GatewayError) -> bytes:
        """Return the body of an error."""
        return encode(_failure(error))

    def failure_event(self, error: GatewayError) -> bytes:
        """Return the event of an error."""
        return event(_failure(error), "error")


class _VolatileLines:
    """Removes the lines that change in each request, and counts them."""

    def __init__(self) -> None:
        self.removed = 0

    def strip(self, texts: Sequence[str], *lines: tuple[str, re.Pattern[str]]) -> list[str]:
        """Return the texts without such lines; a text that has no other line is left out."""
        kept: list[str] = []
        for text in texts:
            removed, rest = 0, text
            for mark, pattern in lines:
                if mark in rest:
                    rest, number = pattern.subn("", rest)
                    removed += number
            self.removed += removed
            if rest or not removed:
                kept.append(rest)
        return kept


def _ignored_inside(request: MessagesBody) -> Iterator[str]:
    if request.output_config is not None:
        fields = {"effort": request.output_config.effort, "task_budget": request.output_config.task_budget}
        yield from (f"output_config.{name}" for name, value in fields.items() if value is not None)
    contents = (message.content for message in request.messages)
    blocks = (block for content in contents if not isinstance(content, str) for block in content)
    if any(isinstance(block, _RedactedThinking) for block in blocks):
        yield "messages.redacted_thinking"
    if request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use:
        yield "tool_choice.disable_parallel_tool_use"


def _choice(choice: _ToolChoice) -> str:
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if not choice.name:
        raise invalid("tool_choice.name is missing; add it")
    return choice.name


def _add_system(
    builder: ConversationBuilder, system: str | list[_TextBlock] | None, lines: _VolatileLines
) -> None:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    # Joined without a separator, as vLLM does.
    if text := "".join(lines.strip(texts, _BILLING, _TOTAL_TOKENS)):
        builder.add_system([text])


def _add_message(
    builder: ConversationBuilder, message: _AnthropicMessage, path: str, lines: _VolatileLines
) -> None:
    blocks: list[_Block] = (
        [_TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
    )
    if message.role == "system":
        _add_system(
            builder, [_TextBlock(text=text) for text in texts_of(_parts(blocks, f"{path}.content"))], lines
        )
    elif message.role == "assistant":
        calls: list[ToolCall] = []
        texts: list[str] = []
        thoughts: list[str] = []
        for number, block in enumerate(blocks):
            match block:
                case _ToolUse():
                    calls.append(tool_call(block.id, block.name, block.input))
                case _ThinkingBlock():
                    thoughts.append(block.thinking)
                case _RedactedThinking():
                    # Opaque: no model but the one that wrote it can read it.
                    pass
                case _:
                    texts += texts_of(_parts([block], f"{path}.content", start=number))
        builder.add_answer(texts or [""], calls, "".join(thoughts))
    else:
        _add_user(builder, blocks, f"{path}.content", lines)


def _add_user(
    builder: ConversationBuilder, blocks: Sequence[_Block], path: str, lines: _VolatileLines
) -> None:
    images = builder.images
    parts: list[TextPart | ImagePart] = []
    results = False
    for number, block in enumerate(blocks):
        if isinstance(block, _ToolResult):
            results = True
            shown = (
                [_TextBlock(text=block.content)] if isinstance(block.content, str) else block.content or []
            )
            result = _parts(shown, f"{path}[{number}].content", images)
            builder.add_result(block.tool_use_id, list(result), failed=bool(block.is_error))
            continue
        for part in _parts([block], path, images, start=number):
            if isinstance(part, TextPart):
                parts += map(TextPart, lines.strip([part.text], _TOTAL_TOKENS))
            else:
                parts.append(part)
    if parts or not results:
        builder.add_user(parts or [TextPart("")])


def _parts(
    blocks: Sequence[object], path: str, images: RequestImages | None = None, *, start: int = 0
) -> Iterator[TextPart | ImagePart]:
    for number, block in enumerate(blocks, start):
        match block:
            case _TextBlock():
                yield TextPart(block.text)
            case _ToolReference():
                yield TextPart(f"Tool: {block.tool_name}")
            case _ImageBlock(source=_Base64Source() as source) if images is not None:
                yield images.add_base64(source.media_type, source.data, f"{path}[{number}].source")
            case _ImageBlock() if images is not None:
                raise invalid(
                    f"{path}[{number}].source: the gateway fetches no address and has no files; send the image in base64",
                    "image_address",
                )
            case _ImageBlock() | _DocumentBlock() | _SearchResultBlock():
                raise unsupported(block, f"{path}[{number}]")
            case _:
                raise invalid(
                    f"{path}[{number}]: such a block can't be in this message", "unsupported_content"
                )


def _tools(tools: list[dict[str, Any]], ignored: list[str]) -> Iterator[ToolSpec]:
    for number, raw in enumerate(tools):
        path, kind = f"tools[{number}]", raw.get("type")
        if kind not in (None, "custom"):
            if str(kind).startswith(_CLIENT_TOOLS):
                raise invalid(
                    f"{path}.type: {kind} is not supported; describe the tool with name and input_schema"
                )
            ignored.append(f"tools.{kind}")
            continue
        tool = convert(raw, list[_AnthropicTool], path, (_AnthropicTool,))
        yield tool_spec(tool.name, tool.description, tool.input_schema, path)


def _failure(error: GatewayError) -> dict[str, Any]:
    kinds = {
        401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
        429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
    }  # fmt: skip
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessagesReply:
    """Writes the answer to one request."""

    ping = event({"type": "ping"}, "ping")

    def __init__(self, model: str) -> None:
        self._model = model
        self._sent = ""
        self._index = 0

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        answer = answers[0]
        message = self._message(answer.id, list(_content(answer, answer.text)), _usage(answers))
        return encode({**message, **_stopped(answer)})

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events."""
        message = self._message(answer, [], {"input_tokens": 0, "output_tokens": 0})
        yield _event("message_start", message=message)
        yield self.ping

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text."""
        if not self._sent:
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        self._sent += text
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        answer = answers[0]
        rest = unsent(answer, self._sent)
        if self._sent:
            if rest:
                yield from self.piece(rest)
            yield _event("content_block_stop", index=0)
            self._index, rest = 1, ""
        for block in _content(answer, rest, begun=bool(self._sent)):
            yield from self._block(block)
        usage = _usage(answers)
        yield _event("message_delta", delta=_stopped(answer), usage=usage)
        yield _event("message_stop")

    def _block(self, block: dict[str, Any]) -> Iterator[bytes]:
        index, self._index = self._index, self._index + 1
        empty: dict[str, dict[str, Any]] = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        yield _event("content_block_start", index=index, content_block={**block, **empty[block["type"]]})
        deltas: dict[str, list[dict[str, Any]]] = {
            "text": [{"type": "text_delta", "text": block.get("text")}],
            "thinking": [
                {"type": "thinking_delta", "thinking": block.get("thinking")},
                {"type": "signature_delta", "signature": _SIGNATURE},
            ],
            "tool_use": [{"type": "input_json_delta", "partial_json": encode(block.get("input")).decode()}],
        }
        for delta in deltas[block["type"]]:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)

    def _message(self, answer: str, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        head = {"id": f"msg_{answer}", "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _event(name: str, /, **fields: object) -> bytes:
    return event({"type": name, **fields}, name)


def _content(answer: Completion[None], text: str, *, begun: bool = False) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": _SIGNATURE}
    if text or not (answer.calls or begun):
        yield {"type": "text", "text": text}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)}


def _stopped(answer: Completion[None]) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    if answer.stop and answer.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    return {"stop_reason": reasons[answer.finish], "stop_sequence": None}


def _usage(answers: Sequence[Completion[None]]) -> dict[str, Any]:
    used, cached = total_usage(answers), cached_tokens(answers)
    return {
        "input_tokens": used.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used.completion_tokens,
    }
