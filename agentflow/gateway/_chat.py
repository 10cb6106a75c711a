"""OpenAI's APIs without state: chat completions, and completions of a prompt without roles."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from agentflow.gateway._dialect import (
    ConversationBuilder,
    ParsedRequest,
    RequestContext,
    RequestImages,
    StrictBody,
    arguments_text,
    cached_tokens,
    checked,
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
from agentflow.models import Completion, ImagePart, Sampling, TextPart, ToolSpec


class _ChatText(StrictBody, tag="text"):
    text: str
    cache_control: object = None
    prompt_cache_breakpoint: object = None


class _ChatRefusal(StrictBody, tag="refusal"):
    refusal: str


class _ImageAddress(StrictBody):
    url: str
    detail: object = None


class _ChatImage(StrictBody, tag="image_url"):
    image_url: _ImageAddress | str
    cache_control: object = None
    prompt_cache_breakpoint: object = None


class _ChatAudio(Struct, tag="input_audio"):
    pass


class _ChatFile(Struct, tag="file"):
    pass


_ChatContent = str | list[_ChatText | _ChatRefusal | _ChatImage | _ChatAudio | _ChatFile] | None


class _ChatFunction(StrictBody):
    name: str
    arguments: str


class _ChatToolCall(StrictBody):
    id: str
    function: _ChatFunction
    type: Literal["function"] = "function"
    index: int | None = None


class _SystemMessage(StrictBody, tag_field="role", tag="system"):
    content: _ChatContent
    name: str | None = None


class _DeveloperMessage(StrictBody, tag_field="role", tag="developer"):
    content: _ChatContent
    name: str | None = None


class _UserMessage(StrictBody, tag_field="role", tag="user"):
    content: _ChatContent
    name: str | None = None


class _ToolMessage(StrictBody, tag_field="role", tag="tool"):
    content: _ChatContent
    tool_call_id: str
    name: str | None = None


class _AssistantMessage(StrictBody, tag_field="role", tag="assistant"):
    content: _ChatContent = None
    tool_calls: list[_ChatToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    name: str | None = None
    audio: None = None
    function_call: None = None
    annotations: list[object] | None = None


_AnyMessage = _SystemMessage | _DeveloperMessage | _UserMessage | _ToolMessage | _AssistantMessage


class _FunctionSpec(StrictBody):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _ChatTool(StrictBody):
    function: _FunctionSpec
    type: Literal["function"]
    cache_control: object = None


class _ChosenFunction(StrictBody):
    name: str


class _ChatToolChoice(StrictBody):
    function: _ChosenFunction
    type: Literal["function"]


class _NamedSchema(StrictBody):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(StrictBody):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _NamedSchema | None = None


class StreamOptions(StrictBody):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingBody(StrictBody):
    """Sampling parameters that chat completions and completions share."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def sampling(self, max_tokens: int | None = None) -> Sampling:
        """Return the sampling parameters."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens if max_tokens is None else max_tokens,
            seed=self.seed,
            stop=stop,
            extra=extra_sampling(self),
        )

    @property
    def wants_usage(self) -> bool:
        """The stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatBody(SamplingBody, kw_only=True):
    """Body of a request to `/v1/chat/completions`."""

    model: str
    messages: list[_AnyMessage]
    tools: list[_ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _ChatToolChoice | None = None
    response_format: _ResponseFormat | None = None
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: object = None
    moderation: object = None
    parallel_tool_calls: object = None
    prediction: object = None
    prompt_cache_key: object = None
    prompt_cache_options: object = None
    prompt_cache_retention: object = None
    reasoning_effort: object = None
    safety_identifier: object = None
    service_tier: object = None
    store: object = None
    user: object = None
    verbosity: object = None
    audio: object = None
    function_call: object = None
    functions: object = None
    logprobs: object = None
    top_logprobs: object = None
    modalities: list[str] | None = None
    web_search_options: object = None

    IGNORED: ClassVar[tuple[str, ...]] = (
        "metadata", "moderation", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store", "user", "verbosity",
    )  # fmt: skip
    REFUSED: ClassVar[Mapping[str, str]] = {
        "audio": "the model writes text; leave it out",
        "function_call": "use tool_choice",
        "functions": "use tools",
        "logprobs": "read them from the tokens of the episode",
        "top_logprobs": "read them from the tokens of the episode",
        "web_search_options": "offer a tool of your own",
    }


_CHAT_DECODER = msgspec.json.Decoder(ChatBody)
_BODY = (
    ChatBody, _AssistantMessage, _ToolMessage, _ChatText, _ChatToolCall, _ChatFunction, _ChatTool, _FunctionSpec, StreamOptions,
    _ResponseFormat, _NamedSchema, _ChatToolChoice, _ChosenFunction,
)  # fmt: skip


class _OpenAiApi:
    """Errors in OpenAI's format."""

    def failure(self, error: GatewayError) -> bytes:
        """Return the body of an error."""
        return encode(openai_failure(error))

    def failure_event(self, error: GatewayError) -> bytes:
        """Return the event of an error."""
        return event(openai_failure(error))


class ChatApi(_OpenAiApi):
    """Chat completions: `/v1/chat/completions`."""

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse the body of a request."""
        request = decode(body, _CHAT_DECODER, _BODY)
        named = any(message.name is not None for message in request.messages)
        ignored = (*request.ignored(), *(["messages.name"] if named else []))
        if request.modalities not in (None, [], ["text"]):
            raise invalid("modalities: the model writes text only; leave it out")
        choice, builder = request.tool_choice, _conversation(request.messages)
        call = GatewayCall(
            dialect="chat",
            messages=builder.messages,
            images=builder.images.data,
            tools=tuple(_tools(request.tools or [])),
            tool_choice=choice.function.name if isinstance(choice, _ChatToolChoice) else choice or "auto",
            answers=request.n or 1,
            sampling=request.sampling(request.max_completion_tokens),
            schema=_schema(request.response_format),
            template=request.chat_template_kwargs or {},
            stream=bool(request.stream),
        )
        reply = ChatReply(request.model, context.created, request.wants_usage)
        return ParsedRequest(call=checked(call), model=request.model, reply=reply, ignored=ignored)


def _conversation(messages: list[_AnyMessage]) -> ConversationBuilder:
    builder = ConversationBuilder()
    for number, message in enumerate(messages):
        path = f"messages[{number}].content"
        match message:
            case _AssistantMessage():
                calls = [
                    tool_call(call.id, call.function.name, call.function.arguments)
                    for call in message.tool_calls or ()
                ]
                texts = texts_of(_parts(message.content, path))
                texts += [message.refusal] if message.refusal else []
                builder.add_answer(texts or [""], calls, message.reasoning_content or message.reasoning or "")
            case _ToolMessage():
                builder.add_result(message.tool_call_id, list(_parts(message.content, path, builder.images)))
            case _UserMessage():
                builder.add_user(list(_parts(message.content, path, builder.images)))
            case _:
                builder.add_system(texts_of(_parts(message.content, path)))
    return builder


def _parts(
    content: _ChatContent, path: str, images: RequestImages | None = None
) -> Iterator[TextPart | ImagePart]:
    for number, part in enumerate([_ChatText(text=content)] if isinstance(content, str) else content or ()):
        match part:
            case _ChatText():
                yield TextPart(part.text)
            case _ChatRefusal():
                yield TextPart(part.refusal)
            case _ChatImage() if images is not None:
                url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
                yield images.add_url(url, f"{path}[{number}].image_url")
            case _:
                raise unsupported(part, f"{path}[{number}]")


def _tools(tools: list[_ChatTool]) -> Iterator[ToolSpec]:
    for number, tool in enumerate(tools):
        function = tool.function
        path = f"tools[{number}].function"
        yield tool_spec(function.name, function.description, function.parameters, path)


def _schema(format: _ResponseFormat | None) -> dict[str, Any] | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return {}
    if format.json_schema is None or format.json_schema.schema is None:
        raise invalid("response_format.json_schema.schema is missing; add it")
    return format.json_schema.schema


class ChatReply:
    """Writes the answers to one request."""

    ping = b": ping\n\n"

    def __init__(self, model: str, created: int, usage: bool) -> None:
        """Store fields of the request.

        :param usage: the stream ends with the usage.
        """
        self._fields = {"created": created, "model": model}
        self._usage = usage
        self._id = ""
        self._sent = ""

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        choices = [
            {"index": index, "message": _message(answer), "logprobs": None, "finish_reason": answer.finish}
            for index, answer in enumerate(answers)
        ]
        head = {"id": f"chatcmpl-{answers[0].id}", "object": "chat.completion", **self._fields}
        return encode({**head, "choices": choices, "usage": openai_usage(answers)})

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events."""
        self._id = answer
        yield self._chunk(0, {"role": "assistant", "content": ""})

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text."""
        self._sent += text
        yield self._chunk(0, {"content": text})

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        for index, answer in enumerate(answers):
            if index:
                yield self._chunk(index, {"role": "assistant", "content": ""})
            if answer.reasoning:
                yield self._chunk(index, {"reasoning_content": answer.reasoning})
            if rest := unsent(answer, "" if index else self._sent):
                yield self._chunk(index, {"content": rest})
            for number, call in enumerate(_calls(answer)):
                function = call["function"]
                begun = {"index": number, **call, "function": {**function, "arguments": ""}}
                yield self._chunk(index, {"tool_calls": [begun]})
                written = {"index": number, "function": {"arguments": function["arguments"]}}
                yield self._chunk(index, {"tool_calls": [written]})
            yield self._chunk(index, {}, answer.finish)
        if self._usage:
            yield event({**self._head(), "choices": [], "usage": openai_usage(answers)})
        yield b"data: [DONE]\n\n"

    def _head(self) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self._id}", "object": "chat.completion.chunk", **self._fields}

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._head(), "choices": [choice], **({"usage": None} if self._usage else {})})


def _message(answer: Completion[None]) -> dict[str, Any]:
    content = answer.text or (None if answer.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    return {**message, "tool_calls": _calls(answer)} if answer.calls else message


def _calls(answer: Completion[None]) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in answer.calls
    ]


def openai_usage(answers: Sequence[Completion[None]]) -> dict[str, Any]:
    """Return the usage of a call in the format of chat completions."""
    used = total_usage(answers)
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(answers)},
    }


class CompletionsBody(SamplingBody, kw_only=True):
    """Body of a request to `/v1/completions`."""

    model: str
    prompt: str | list[int | str | list[int]]
    user: object = None
    best_of: int | None = None
    echo: object = None
    logprobs: object = None
    suffix: object = None

    IGNORED: ClassVar[tuple[str, ...]] = ("user",)
    REFUSED: ClassVar[Mapping[str, str]] = {
        "echo": "put the prompt before the answer yourself",
        "logprobs": "read them from the tokens of the episode",
        "suffix": "leave it out",
    }


_COMPLETIONS_DECODER = msgspec.json.Decoder(CompletionsBody)


class CompletionsApi(_OpenAiApi):
    """Completions: `/v1/completions`."""

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse the body of a request."""
        request = decode(body, _COMPLETIONS_DECODER, (CompletionsBody, StreamOptions))
        ignored = request.ignored()
        if request.best_of not in (None, request.n or 1):
            raise invalid("best_of is not supported: ask for n answers")
        call = GatewayCall(
            dialect="completions",
            prompt=_prompt(request.prompt),
            answers=request.n or 1,
            sampling=request.sampling(),
            stream=bool(request.stream),
        )
        reply = CompletionsReply(request.model, context.created, request.wants_usage)
        return ParsedRequest(call=checked(call), model=request.model, reply=reply, ignored=ignored)


def _prompt(prompt: str | list[int | str | list[int]]) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    ids = tuple(id for id in prompt if isinstance(id, int))
    if ids and len(ids) == len(prompt):
        return ids
    if len(prompt) != 1 or isinstance(prompt[0], int):
        raise invalid("prompt: send one prompt in each request, as text or as ids of tokens")
    return prompt[0] if isinstance(prompt[0], str) else tuple(prompt[0])


class CompletionsReply:
    """Writes the answers to one request."""

    ping = b": ping\n\n"

    def __init__(self, model: str, created: int, usage: bool) -> None:
        """Store fields of the request.

        :param usage: the stream ends with the usage.
        """
        self._fields = {"object": "text_completion", "created": created, "model": model}
        self._usage = usage
        self._id = ""
        self._sent = ""

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        choices = [_choice(index, answer.text, answer.finish) for index, answer in enumerate(answers)]
        head = {"id": f"cmpl-{answers[0].id}", **self._fields}
        return encode({**head, "choices": choices, "usage": openai_usage(answers)})

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events: none."""
        self._id = answer
        yield from ()

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text."""
        self._sent += text
        yield self._chunk([_choice(0, text, None)])

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        for index, answer in enumerate(answers):
            yield self._chunk([_choice(index, unsent(answer, "" if index else self._sent), answer.finish)])
        if self._usage:
            yield self._chunk([], openai_usage(answers))
        yield b"data: [DONE]\n\n"

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        shown = {"usage": usage} if self._usage else {}
        return event({"id": f"cmpl-{self._id}", **self._fields, "choices": choices, **shown})


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
