"""Responses API of the gateway."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from agentflow._typeguards import is_object
from agentflow.gateway._chat import unsupported
from agentflow.gateway._conversation import ConversationBuilder, texts_of, tool_call, tool_spec
from agentflow.gateway._dialect import (
    Arrival,
    ParsedRequest,
    StrictBody,
    checked,
    convert,
    decode,
    encode,
    event,
    extra_sampling,
    invalid,
    openai_failure,
)
from agentflow.gateway._images import RequestImages
from agentflow.gateway._responses_reply import ResponseFields, ResponsesReply, ResponseTool
from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import ImagePart, Sampling, TextPart, ToolSpec

_NAMESPACE = "__"
"""Separator of a namespace and the name of a tool in it."""
_CLIENT_TOOLS = ("local_shell", "shell", "apply_patch", "computer")
"""Prefixes of tools that the client runs and describes by their type only."""


class _InputText(StrictBody, tag="input_text"):
    text: str
    prompt_cache_breakpoint: object = None


class _OutputText(StrictBody, tag="output_text"):
    text: str
    annotations: object = None
    logprobs: object = None


class _OutputRefusal(StrictBody, tag="refusal"):
    refusal: str


class _InputImage(StrictBody, tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: object = None
    prompt_cache_breakpoint: object = None


class _InputFile(Struct, tag="input_file"):
    pass


class _InputAudio(Struct, tag="input_audio"):
    pass


_Content = str | list[_InputText | _OutputText | _OutputRefusal | _InputImage | _InputFile | _InputAudio]


class _MessageItem(StrictBody, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content
    id: str | None = None
    phase: object = None
    status: object = None


class _FunctionCall(StrictBody, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None
    caller: object = None
    status: object = None
    asynchronous: object = field(name="async", default=None)


class _FunctionOutput(StrictBody, tag="function_call_output"):
    call_id: str
    output: _Content
    id: str | None = None
    name: object = None
    namespace: object = None
    caller: object = None
    status: object = None


class _CustomCall(StrictBody, tag="custom_tool_call"):
    call_id: str
    name: str
    input: str
    id: str | None = None
    namespace: str | None = None
    caller: object = None
    status: object = None
    asynchronous: object = field(name="async", default=None)


class _CustomOutput(StrictBody, tag="custom_tool_call_output"):
    call_id: str
    output: _Content
    id: str | None = None
    caller: object = None
    status: object = None


class _Thought(StrictBody):
    text: str
    type: str


class _Reasoning(StrictBody, tag="reasoning"):
    id: str | None = None
    summary: list[_Thought] | None = None
    content: list[_Thought] | None = None
    encrypted_content: str | None = None
    status: object = None


_Item = _MessageItem | _FunctionCall | _FunctionOutput | _CustomCall | _CustomOutput | _Reasoning


class _FunctionTool(StrictBody, tag="function"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: object = None
    allowed_callers: object = None
    defer_loading: object = None
    output_schema: object = None
    asynchronous: object = field(name="async", default=None)


class _CustomTool(StrictBody, tag="custom"):
    name: str
    description: str | None = None
    format: object = None
    allowed_callers: object = None
    defer_loading: object = None
    asynchronous: object = field(name="async", default=None)


class _NamespaceTool(StrictBody, tag="namespace"):
    name: str
    tools: list[_FunctionTool | _CustomTool]
    description: str | None = None


class _ChosenTool(StrictBody):
    type: Literal["function", "custom"]
    name: str


class _TextFormat(StrictBody):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class _TextConfig(StrictBody):
    format: _TextFormat | None = None
    verbosity: object = None


class ResponsesBody(StrictBody):
    """Body of a request to `/v1/responses`."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    text: _TextConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] | _ChosenTool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    access_programs: object = None
    client_metadata: object = None
    context_management: object = None
    include: object = None
    max_tool_calls: object = None
    metadata: object = None
    moderation: object = None
    parallel_tool_calls: object = None
    prompt_cache_key: object = None
    prompt_cache_options: object = None
    prompt_cache_retention: object = None
    reasoning: object = None
    safety_identifier: object = None
    service_tier: object = None
    store: object = None
    stream_options: object = None
    truncation: object = None
    user: object = None
    background: object = None
    background_options: object = None
    conversation: object = None
    image: object = None
    prompt: object = None
    top_logprobs: object = None

    IGNORED: ClassVar[tuple[str, ...]] = (
        "access_programs", "client_metadata", "context_management", "include", "max_tool_calls", "metadata",
        "moderation", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "reasoning", "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user",
    )  # fmt: skip
    REFUSED: ClassVar[Mapping[str, str]] = {
        "background": "wait for the answer",
        "background_options": "wait for the answer",
        "conversation": "use previous_response_id, or send the whole conversation",
        "image": "put images into input",
        "prompt": "send instructions and input",
        "top_logprobs": "read them from the tokens of the episode",
    }


_DECODER = msgspec.json.Decoder(ResponsesBody)
_BODY = (ResponsesBody, _TextConfig, _TextFormat, _ChosenTool)
_ITEMS = (
    _MessageItem,
    _FunctionCall,
    _FunctionOutput,
    _CustomCall,
    _CustomOutput,
    _Reasoning,
    _InputText,
    _OutputText,
    _InputImage,
)


class ResponsesApi:
    """Responses: `/v1/responses`."""

    def parse(self, body: bytes, arrival: Arrival) -> ParsedRequest:
        """Parse the body of a request."""
        given = decode(body, _DECODER, _BODY)
        ignored = list(given.ignored())
        if given.text is not None and given.text.verbosity is not None:
            ignored.append("text.verbosity")
        builder = ConversationBuilder()
        if given.instructions:
            builder.add_system([given.instructions])
        leading = len(builder.messages)
        _add_input(builder, given.input, ignored)
        known: dict[str, ResponseTool] = {}
        tools = tuple(_tools(given.tools or [], ignored, known))
        continues, skipped = _continued(given.previous_response_id or "", arrival.tag)
        choice = given.tool_choice
        call = GatewayCall(
            dialect="responses",
            messages=builder.messages,
            images=builder.images.data,
            tools=tools,
            tool_choice=choice.name if isinstance(choice, _ChosenTool) else choice or "auto",
            sampling=Sampling(
                temperature=given.temperature,
                top_p=given.top_p,
                max_tokens=given.max_output_tokens,
                extra=extra_sampling(given),
            ),
            schema=_schema(given.text),
            template=given.chat_template_kwargs or {},
            continues=continues,
            stream=bool(given.stream),
        )
        return ParsedRequest(
            call=checked(call),
            model=given.model,
            reply=ResponsesReply(_repeated(given), arrival, known),
            ignored=tuple(ignored),
            leading=leading,
            skipped=skipped,
        )

    def failure(self, error: GatewayError) -> bytes:
        """Return the body of an error."""
        return encode(openai_failure(error))

    def failure_event(self, error: GatewayError) -> bytes:
        """Return the event of an error."""
        # `openai` raises an error only for an object `error`.
        told = {"code": error.code or None, "message": error.message, "param": None, "sequence_number": 0}
        return event({"type": "error", **told, **openai_failure(error)}, "error")


def _continued(response: str, tag: str) -> tuple[str, int]:
    """Return the id of a response's call, and the number of its messages to leave out."""
    if not response:
        return "", 0
    head = f"resp_{tag}_"
    if not response.startswith(head):
        raise no_response(response)
    answer, instructed, _ = response.removeprefix(head).partition("_i")
    return answer, 1 if instructed else 0


def no_response(response: str) -> GatewayError:
    """Return the error of an unknown `previous_response_id`."""
    where = "it must be of this episode and agent, or send the whole conversation"
    return invalid(f"previous_response_id: no response {response}; {where}", "previous_response_not_found")


def _add_input(
    builder: ConversationBuilder, given: str | list[dict[str, Any]] | None, ignored: list[str]
) -> None:
    if isinstance(given, str):
        return builder.add_user([TextPart(given)])
    reasoning = ""
    for number, raw in enumerate(given or ()):
        place = f"input[{number}]"
        item = convert(raw if "type" in raw else {**raw, "type": "message"}, list[_Item], place, _ITEMS)
        match item:
            case _Reasoning():
                reasoning = "".join(thought.text for thought in item.content or item.summary or ())
                if item.encrypted_content and "input.encrypted_content" not in ignored:
                    ignored.append("input.encrypted_content")
                continue
            case _MessageItem(role="assistant"):
                said = texts_of(_parts(item.content, f"{place}.content"))
                builder.add_answer(said or [""], (), reasoning)
            case _MessageItem(role="user"):
                builder.add_user(list(_parts(item.content, f"{place}.content", builder.images)))
            case _MessageItem():
                builder.add_system(texts_of(_parts(item.content, f"{place}.content")))
            case _FunctionCall():
                call = tool_call(item.call_id, _flat(item.namespace, item.name), item.arguments)
                builder.add_answer([], [call], reasoning, extend=True)
            case _CustomCall():
                call = tool_call(item.call_id, _flat(item.namespace, item.name), {"input": item.input})
                builder.add_answer([], [call], reasoning, extend=True)
            case _FunctionOutput() | _CustomOutput():
                parts = _parts(item.output, f"{place}.output", builder.images)
                builder.add_result(item.call_id, list(parts))
        reasoning = ""


def _parts(
    content: _Content, place: str, images: RequestImages | None = None
) -> Iterator[TextPart | ImagePart]:
    for number, part in enumerate([_InputText(text=content)] if isinstance(content, str) else content):
        match part:
            case _InputText() | _OutputText():
                yield TextPart(part.text)
            case _OutputRefusal():
                yield TextPart(part.refusal)
            case _InputImage(image_url=str(url), file_id=None) if images is not None:
                yield images.add_url(url, f"{place}[{number}].image_url")
            case _InputImage() if images is not None:
                remedy = "the gateway has no files; send the image as data:image/png;base64,…"
                raise invalid(f"{place}[{number}].image_url: {remedy}", "image_address")
            case _:
                raise unsupported(part, f"{place}[{number}]")


def _flat(namespace: str | None, name: str) -> str:
    return f"{namespace}{_NAMESPACE}{name}" if namespace else name


def _tools(
    given: list[dict[str, Any]], ignored: list[str], known: dict[str, ResponseTool]
) -> Iterator[ToolSpec]:
    for number, raw in enumerate(given):
        place, kind = f"tools[{number}]", str(raw.get("type"))
        if kind.startswith(_CLIENT_TOOLS):
            raise invalid(f"{place}.type: {kind} is not supported; describe the tool as a function")
        if kind not in ("function", "custom", "namespace"):
            ignored.append(f"tools.{kind}")
            continue
        tool = convert(
            raw,
            list[_FunctionTool | _CustomTool | _NamespaceTool],
            place,
            (_FunctionTool, _CustomTool, _NamespaceTool),
        )
        space = tool.name if isinstance(tool, _NamespaceTool) else ""
        for one in tool.tools if isinstance(tool, _NamespaceTool) else (tool,):
            name, custom = _flat(space, one.name), isinstance(one, _CustomTool)
            known[name] = ResponseTool(one.name, space, custom)
            schema = one.parameters if isinstance(one, _FunctionTool) else _CUSTOM
            yield tool_spec(name, one.description, schema, place)


_CUSTOM: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Arguments of a custom tool."""


def _schema(text: _TextConfig | None) -> dict[str, Any] | None:
    if text is None or text.format is None or text.format.type == "text":
        return None
    if text.format.type == "json_object":
        return {}
    if text.format.schema is None:
        raise invalid("text.format.schema is missing; add it")
    return text.format.schema


def _repeated(given: ResponsesBody) -> ResponseFields:
    return ResponseFields(
        instructions=given.instructions,
        max_output_tokens=given.max_output_tokens,
        metadata=given.metadata if is_object(given.metadata) else {},
        model=given.model,
        previous_response_id=given.previous_response_id,
        temperature=given.temperature,
        format=given.text.format if given.text and given.text.format else {"type": "text"},
        tool_choice=given.tool_choice,
        tools=given.tools,
        top_p=given.top_p,
    )
