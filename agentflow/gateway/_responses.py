"""Responses API of OpenAI."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from agentflow._typeguards import is_object
from agentflow.gateway._dialect import (
    ConversationBuilder,
    ParsedRequest,
    RequestContext,
    RequestImages,
    StrictBody,
    arguments_text,
    cached_tokens,
    checked,
    convert,
    decode,
    encode,
    event,
    extra_sampling,
    invalid,
    openai_failure,
    texts_of,
    tool_call,
    tool_spec,
    total_usage,
    unsent,
    unsupported,
)
from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import Completion, ImagePart, Sampling, TextPart, ToolCall, ToolSpec

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


class _ResponseTool(Struct, frozen=True):
    """A tool as the client knows it."""

    name: str
    namespace: str = ""
    custom: bool = False
    """Its input is text, not an object."""


class ResponsesApi:
    """Responses: `/v1/responses`."""

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse the body of a request."""
        request = decode(body, _DECODER, _BODY)
        ignored = list(request.ignored())
        if request.text is not None and request.text.verbosity is not None:
            ignored.append("text.verbosity")
        builder = ConversationBuilder()
        if request.instructions:
            builder.add_system([request.instructions])
        leading = len(builder.messages)
        _add_input(builder, request.input, ignored)
        tools_by_name: dict[str, _ResponseTool] = {}
        tools = tuple(_tools(request.tools or [], ignored, tools_by_name))
        continues, skipped = _continued(request.previous_response_id or "", context.tag)
        choice = request.tool_choice
        call = GatewayCall(
            dialect="responses",
            messages=builder.messages,
            images=builder.images.data,
            tools=tools,
            tool_choice=choice.name if isinstance(choice, _ChosenTool) else choice or "auto",
            sampling=Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                max_tokens=request.max_output_tokens,
                extra=extra_sampling(request),
            ),
            schema=_schema(request.text),
            template=request.chat_template_kwargs or {},
            continues=continues,
            stream=bool(request.stream),
        )
        return ParsedRequest(
            call=checked(call),
            model=request.model,
            reply=ResponsesReply(request, context, tools_by_name),
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
        fields = {"code": error.code or None, "message": error.message, "param": None, "sequence_number": 0}
        return event({"type": "error", **fields, **openai_failure(error)}, "error")


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
    builder: ConversationBuilder, items: str | list[dict[str, Any]] | None, ignored: list[str]
) -> None:
    if isinstance(items, str):
        return builder.add_user([TextPart(items)])
    reasoning = ""
    for number, raw in enumerate(items or ()):
        path = f"input[{number}]"
        item = convert(raw if "type" in raw else {**raw, "type": "message"}, list[_Item], path, _ITEMS)
        match item:
            case _Reasoning():
                reasoning = "".join(thought.text for thought in item.content or item.summary or ())
                if item.encrypted_content and "input.encrypted_content" not in ignored:
                    ignored.append("input.encrypted_content")
                continue
            case _MessageItem(role="assistant"):
                texts = texts_of(_parts(item.content, f"{path}.content"))
                builder.add_answer(texts or [""], (), reasoning)
            case _MessageItem(role="user"):
                builder.add_user(list(_parts(item.content, f"{path}.content", builder.images)))
            case _MessageItem():
                builder.add_system(texts_of(_parts(item.content, f"{path}.content")))
            case _FunctionCall():
                call = tool_call(item.call_id, _flat(item.namespace, item.name), item.arguments)
                builder.add_answer([], [call], reasoning, extend=True)
            case _CustomCall():
                call = tool_call(item.call_id, _flat(item.namespace, item.name), {"input": item.input})
                builder.add_answer([], [call], reasoning, extend=True)
            case _FunctionOutput() | _CustomOutput():
                parts = _parts(item.output, f"{path}.output", builder.images)
                builder.add_result(item.call_id, list(parts))
        reasoning = ""


def _parts(
    content: _Content, path: str, images: RequestImages | None = None
) -> Iterator[TextPart | ImagePart]:
    for number, part in enumerate([_InputText(text=content)] if isinstance(content, str) else content):
        match part:
            case _InputText() | _OutputText():
                yield TextPart(part.text)
            case _OutputRefusal():
                yield TextPart(part.refusal)
            case _InputImage(image_url=str(url), file_id=None) if images is not None:
                yield images.add_url(url, f"{path}[{number}].image_url")
            case _InputImage() if images is not None:
                remedy = "the gateway has no files; send the image as data:image/png;base64,…"
                raise invalid(f"{path}[{number}].image_url: {remedy}", "image_address")
            case _:
                raise unsupported(part, f"{path}[{number}]")


def _flat(namespace: str | None, name: str) -> str:
    return f"{namespace}{_NAMESPACE}{name}" if namespace else name


def _tools(
    tools: list[dict[str, Any]], ignored: list[str], tools_by_name: dict[str, _ResponseTool]
) -> Iterator[ToolSpec]:
    for number, raw in enumerate(tools):
        path, kind = f"tools[{number}]", str(raw.get("type"))
        if kind.startswith(_CLIENT_TOOLS):
            raise invalid(f"{path}.type: {kind} is not supported; describe the tool as a function")
        if kind not in ("function", "custom", "namespace"):
            ignored.append(f"tools.{kind}")
            continue
        tool = convert(
            raw,
            list[_FunctionTool | _CustomTool | _NamespaceTool],
            path,
            (_FunctionTool, _CustomTool, _NamespaceTool),
        )
        space = tool.name if isinstance(tool, _NamespaceTool) else ""
        for spec in tool.tools if isinstance(tool, _NamespaceTool) else (tool,):
            name = _flat(space, spec.name)
            tools_by_name[name] = _ResponseTool(spec.name, space, custom=isinstance(spec, _CustomTool))
            schema = spec.parameters if isinstance(spec, _FunctionTool) else _CUSTOM
            yield tool_spec(name, spec.description, schema, path)


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


def _response_id(answer: str, tag: str, instructed: bool) -> str:
    """Return the id of a response. It tells if the first message is instructions, which do not apply to later requests."""
    return f"resp_{tag}_{answer}{'_i' if instructed else ''}"


class ResponsesReply:
    """Writes the answer to one request."""

    ping = b": ping\n\n"

    def __init__(
        self, request: ResponsesBody, context: RequestContext, tools_by_name: Mapping[str, _ResponseTool]
    ) -> None:
        """Store the request.

        :param tools_by_name: tools by the names that the model sees.
        """
        self._request = request
        self._context = context
        self._tools_by_name = tools_by_name
        self._answer = ""
        self._sent = ""
        self._number = 0

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        self._answer = answers[0].id
        return encode(self._finished(answers))

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events."""
        self._answer = answer
        response = self._response("in_progress", [])
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text."""
        position = {"item_id": f"msg_{self._answer}", "output_index": 0, "content_index": 0}
        if not self._sent:
            yield from self._begin(0, self._message("", "in_progress"), _output_text(""))
        self._sent += text
        yield self._event("response.output_text.delta", **position, delta=text, logprobs=[])

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        answer, finished = answers[0], self._finished(answers)
        rest = unsent(answer, self._sent)
        for index, item in enumerate(finished["output"]):
            position = {"item_id": item["id"], "output_index": index}
            match item["type"]:
                case "reasoning":
                    thought = {"type": "reasoning_text", "text": answer.reasoning}
                    yield from self._begin(index, {**item, "content": []}, {**thought, "text": ""})
                    at = {**position, "content_index": 0}
                    yield self._event("response.reasoning_text.delta", **at, delta=answer.reasoning)
                    yield self._event("response.reasoning_text.done", **at, text=answer.reasoning)
                    yield self._event("response.content_part.done", **at, part=thought)
                case "message":
                    if not self._sent:
                        yield from self._begin(index, self._message("", "in_progress"), _output_text(""))
                    at = {**position, "content_index": 0}
                    if rest:
                        yield self._event("response.output_text.delta", **at, delta=rest, logprobs=[])
                    yield self._event("response.output_text.done", **at, text=answer.text, logprobs=[])
                    yield self._event("response.content_part.done", **at, part=_output_text(answer.text))
                case "custom_tool_call":
                    yield from self._begin(index, {**item, "input": "", "status": "in_progress"})
                    name = "response.custom_tool_call_input"
                    yield self._event(f"{name}.delta", **position, delta=item["input"])
                    yield self._event(f"{name}.done", **position, input=item["input"])
                case _:
                    yield from self._begin(index, {**item, "arguments": "", "status": "in_progress"})
                    name, written = "response.function_call_arguments", item["arguments"]
                    yield self._event(f"{name}.delta", **position, delta=written)
                    yield self._event(f"{name}.done", **position, name=item["name"], arguments=written)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{finished['status']}", response=finished)

    def _begin(self, index: int, item: dict[str, Any], part: dict[str, Any] | None = None) -> Iterator[bytes]:
        empty: dict[str, Any] = {**item, "content": []} if part is not None else item
        yield self._event("response.output_item.added", output_index=index, item=empty)
        if part is not None:
            position = {"item_id": item["id"], "output_index": index, "content_index": 0}
            yield self._event("response.content_part.added", **position, part=part)

    def _event(self, name: str, /, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": name, "sequence_number": number, **fields}, name)

    def _finished(self, answers: Sequence[Completion[None]]) -> dict[str, Any]:
        answer = answers[0]
        cut = answer.finish == "length"
        response = self._response("incomplete" if cut else "completed", list(self._output(answer)))
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        used = total_usage(answers)
        response["usage"] = {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens(answers), "cache_write_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt_tokens + used.completion_tokens,
        }
        return response

    def _output(self, answer: Completion[None]) -> Iterator[dict[str, Any]]:
        status = "incomplete" if answer.finish == "length" else "completed"
        if answer.reasoning:
            thoughts = [{"type": "reasoning_text", "text": answer.reasoning}]
            yield {"type": "reasoning", "id": f"rs_{answer.id}", "summary": [], "content": thoughts}
        if answer.text or not answer.calls:
            yield self._message(answer.text, status)
        for call in answer.calls:
            yield self._call(call, status)

    def _message(self, text: str, status: str) -> dict[str, Any]:
        head = {"type": "message", "id": f"msg_{self._answer}", "role": "assistant", "status": status}
        return {**head, "content": [_output_text(text)]}

    def _call(self, call: ToolCall, status: str) -> dict[str, Any]:
        tool = self._tools_by_name.get(call.name, _ResponseTool(call.name))
        space = {"namespace": tool.namespace} if tool.namespace else {}
        head = {"call_id": call.id, "name": tool.name, **space, "status": status}
        if tool.custom:
            text = (call.arguments or {}).get("input")
            written = text if isinstance(text, str) else arguments_text(call)
            return {"type": "custom_tool_call", "id": f"ctc_{call.id}", **head, "input": written}
        return {"type": "function_call", "id": f"fc_{call.id}", **head, "arguments": arguments_text(call)}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        request = self._request
        return {
            "id": _response_id(self._answer, self._context.tag, bool(request.instructions)),
            "object": "response",
            "created_at": self._context.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata if is_object(request.metadata) else {},
            "model": request.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": {
                "format": request.text.format if request.text and request.text.format else {"type": "text"}
            },
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [] if status != "in_progress" else [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
