"""Chat completions API of the gateway."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from agentflow.gateway._chat_reply import ChatReply
from agentflow.gateway._conversation import ConversationBuilder, texts_of, tool_call, tool_spec
from agentflow.gateway._dialect import (
    Arrival,
    ParsedRequest,
    StrictBody,
    checked,
    decode,
    encode,
    event,
    extra_sampling,
    invalid,
    openai_failure,
)
from agentflow.gateway._images import RequestImages
from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import ImagePart, Sampling, TextPart, ToolSpec

TEXT_AND_IMAGES = "the models of the gateway read text and images; describe it in text"
"""Remedy for audio and files in a conversation."""
TEXT_ONLY = "only the user's messages and results of tools have images"
"""Remedy for images elsewhere."""


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


_DECODER = msgspec.json.Decoder(ChatBody)
_BODY = (
    ChatBody, _AssistantMessage, _ToolMessage, _ChatText, _ChatToolCall, _ChatFunction, _ChatTool, _FunctionSpec, StreamOptions,
    _ResponseFormat, _NamedSchema, _ChatToolChoice, _ChosenFunction,
)  # fmt: skip


class ChatApi:
    """Chat completions: `/v1/chat/completions`."""

    def parse(self, body: bytes, arrival: Arrival) -> ParsedRequest:
        """Parse the body of a request."""
        given = decode(body, _DECODER, _BODY)
        named = any(message.name is not None for message in given.messages)
        ignored = (*given.ignored(), *(["messages.name"] if named else []))
        if given.modalities not in (None, [], ["text"]):
            raise invalid("modalities: the model writes text only; leave it out")
        choice, builder = given.tool_choice, _conversation(given.messages)
        call = GatewayCall(
            dialect="chat",
            messages=builder.messages,
            images=builder.images.data,
            tools=tuple(_tools(given.tools or [])),
            tool_choice=choice.function.name if isinstance(choice, _ChatToolChoice) else choice or "auto",
            answers=given.n or 1,
            sampling=given.sampling(given.max_completion_tokens),
            schema=_schema(given.response_format),
            template=given.chat_template_kwargs or {},
            stream=bool(given.stream),
        )
        reply = ChatReply(given.model, arrival.created, given.wants_usage)
        return ParsedRequest(call=checked(call), model=given.model, reply=reply, ignored=ignored)

    def failure(self, error: GatewayError) -> bytes:
        """Return the body of an error."""
        return encode(openai_failure(error))

    def failure_event(self, error: GatewayError) -> bytes:
        """Return the event of an error."""
        return event(openai_failure(error))


def _conversation(given: list[_AnyMessage]) -> ConversationBuilder:
    builder = ConversationBuilder()
    for number, message in enumerate(given):
        place = f"messages[{number}].content"
        match message:
            case _AssistantMessage():
                calls = [
                    tool_call(one.id, one.function.name, one.function.arguments)
                    for one in message.tool_calls or ()
                ]
                said = [
                    *texts_of(_parts(message.content, place)),
                    *([message.refusal] if message.refusal else []),
                ]
                builder.add_answer(said or [""], calls, message.reasoning_content or message.reasoning or "")
            case _ToolMessage():
                builder.add_result(message.tool_call_id, list(_parts(message.content, place, builder.images)))
            case _UserMessage():
                builder.add_user(list(_parts(message.content, place, builder.images)))
            case _:
                builder.add_system(texts_of(_parts(message.content, place)))
    return builder


def _parts(
    content: _ChatContent, place: str, images: RequestImages | None = None
) -> Iterator[TextPart | ImagePart]:
    for number, part in enumerate([_ChatText(text=content)] if isinstance(content, str) else content or ()):
        match part:
            case _ChatText():
                yield TextPart(part.text)
            case _ChatRefusal():
                yield TextPart(part.refusal)
            case _ChatImage() if images is not None:
                url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
                yield images.add_url(url, f"{place}[{number}].image_url")
            case _:
                raise unsupported(part, f"{place}[{number}]")


def unsupported(part: Struct, place: str) -> GatewayError:
    """Return the refusal of a part that can't be in its message."""
    kind = str(type(part).__struct_config__.tag)
    remedy = TEXT_ONLY if "image" in kind else TEXT_AND_IMAGES
    return invalid(f"{place}: {kind} is not supported: {remedy}", "unsupported_content")


def _tools(given: list[_ChatTool]) -> Iterator[ToolSpec]:
    for number, tool in enumerate(given):
        function = tool.function
        place = f"tools[{number}].function"
        yield tool_spec(function.name, function.description, function.parameters, place)


def _schema(format: _ResponseFormat | None) -> dict[str, Any] | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return {}
    if format.json_schema is None or format.json_schema.schema is None:
        raise invalid("response_format.json_schema.schema is missing; add it")
    return format.json_schema.schema
