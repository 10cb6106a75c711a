"""Parts that all model APIs share: strict bodies, the canonical form of a conversation, errors, usage and events."""

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Struct

from agentflow._decoding import JsonError, decode_json
from agentflow._typeguards import is_object
from agentflow.gateway._images import (
    IMAGE_FORMATS,
    IMAGE_TYPES,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGES,
    MAX_PIXELS,
    hash_of,
    image_size,
    images_of,
    mime_of_image,
)
from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import (
    Completion,
    ImagePart,
    Message,
    Sampling,
    TextPart,
    ToolCall,
    ToolReply,
    ToolSpec,
)
from agentflow.settings import nearest
from agentflow.trace import Blob, Usage

T = TypeVar("T")

_PROBLEM = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*?)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_WRONG_TAG = re.compile(r"Invalid (?:enum )?value '?(.*?)'?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MAX_MESSAGE = 500
_SAMPLED = (
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)
"""Further sampling parameters, in the extra fields of `Sampling`."""
MAX_MESSAGES = 10_000
"""Messages and results of tools of a conversation. Reading them holds the event loop: this many take about 0.1 s."""
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")
_DATA_URL = re.compile(r"data:([^;,]*);base64,", re.IGNORECASE)
_TEXT_AND_IMAGES = "the models of the gateway read text and images; describe it in text"
"""Remedy for audio and files in a conversation."""
_TEXT_ONLY = "only the user's messages and results of tools have images"
"""Remedy for images elsewhere."""
_ENCODER = msgspec.json.Encoder()


class StrictBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of a request body. Its fields are used, unless they are listed as ignored or refused."""

    IGNORED: ClassVar[tuple[str, ...]] = ()
    """Fields without an effect; a header of the response names those that a request has."""
    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Fields that are refused unless they are `null`, false or empty, with the remedy."""

    def ignored(self) -> tuple[str, ...]:
        """Return the fields without an effect that the request has.

        :raises GatewayError: if it has a field that is refused.
        """
        for name, remedy in self.REFUSED.items():
            if getattr(self, name):
                raise invalid(f"{name} is not supported: {remedy}")
        return tuple(name for name in self.IGNORED if getattr(self, name) is not None)


class RequestContext(Struct, frozen=True):
    """Circumstances of a request."""

    created: int
    """Time of day, in seconds."""
    tag: str
    """Digest of the key; ids of responses hold it, so that they are valid for that key only."""


class ReplyWriter(Protocol):
    """Writes the answers to one request in the format of its API."""

    ping: bytes
    """Event that keeps the connection open."""

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        ...

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events.

        :param answer: id of the first answer.
        """
        ...

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text, while the answer is being sampled."""
        ...

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        ...


class ParsedRequest(Struct, frozen=True, kw_only=True):
    """A request body, decoded."""

    call: GatewayCall
    model: str
    reply: ReplyWriter
    ignored: tuple[str, ...] = ()
    """Fields and tools without an effect."""
    leading: int = 0
    """Number of messages that precede the continued conversation."""
    skipped: int = 0
    """Number of messages at the beginning of the continued conversation that are left out."""

    def after(self, history: Sequence[Message]) -> GatewayCall:
        """Return the call with the conversation that it continues."""
        new = self.call.messages
        messages = (*new[: self.leading], *history[self.skipped :], *new[self.leading :])
        return msgspec.structs.replace(self.call, messages=messages)


class ModelApi(Protocol):
    """A model API: parses requests, and writes errors; see `ReplyWriter` for answers."""

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse the body of a request.

        :raises GatewayError: if it is not valid.
        """
        ...

    def failure(self, error: GatewayError) -> bytes:
        """Return the body of an error."""
        ...

    def failure_event(self, error: GatewayError) -> bytes:
        """Return the event of an error after the first events."""
        ...


def invalid(message: str, code: str = "invalid_request") -> GatewayError:
    """Return the error of an invalid request: one line, although names in it come from the client."""
    return GatewayError(400, _CONTROL.sub(" ", message)[:_MAX_MESSAGE], code=code)


def encode(value: object) -> bytes:
    """Return JSON."""
    return _ENCODER.encode(value)


def event(data: object, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return b"".join((head, _ENCODER.encode(data), b"\n\n"))


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]", types: Iterable[type[Struct]]) -> T:
    """Decode a body strictly.

    :param types: types whose fields are proposed for unknown ones: first that of the body, then those inside.
    :raises GatewayError: if it is no JSON, has unknown fields, or values of other types.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(explain(error, types)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def convert(value: object, type: type[list[T]], path: str, types: Iterable[type[Struct]]) -> T:
    """Convert a decoded part of a body strictly.

    :param type: list of the type.
    :param path: its path in the body.
    :raises GatewayError: like `decode`.
    """
    try:
        return msgspec.convert([value], type)[0]
    except msgspec.ValidationError as error:
        raise invalid(explain(error, types, path)) from None


def explain(error: msgspec.ValidationError, types: Iterable[type[Struct]], path: str = "") -> str:
    """Describe a validation error in one line: path, problem, and the nearest known name."""
    match = _PROBLEM.fullmatch(str(error))
    problem, inner = (match["problem"], match["path"] or "") if match else (str(error), "")
    where = path + inner.removeprefix("[0]") if path else inner
    if unknown := _UNKNOWN.fullmatch(problem):
        types = list(types)
        names = [name for type in (types if inner else types[:1]) for name in type.__struct_encode_fields__]
        field = f"{where}.{unknown[1]}" if where else unknown[1]
        return f"{field} is unknown{nearest(unknown[1], names)}"
    if where.endswith(("type", "role")) and (tag := _WRONG_TAG.fullmatch(problem)):
        return f"{where}: {tag[1]} is not supported"
    return f"{where}: {problem[0].lower()}{problem[1:]}" if where else problem


def extra_sampling(body: Struct) -> dict[str, Any]:
    """Return the further sampling parameters of a body."""
    values = {name: getattr(body, name, None) for name in _SAMPLED}
    return {name: value for name, value in values.items() if value is not None}


def checked(call: GatewayCall) -> GatewayCall:
    """Return the call if its fields agree with each other.

    :raises GatewayError: if they do not.
    """
    names = [tool.name for tool in call.tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid(f"tools: {twice} is listed twice; give each tool its own name")
    if call.tool_choice not in ("auto", "none"):
        if not names:
            raise invalid(f"tool_choice: {call.tool_choice} needs tools; add them")
        if call.tool_choice != "required" and call.tool_choice not in names:
            raise invalid(f"tool_choice: no tool {call.tool_choice}{nearest(call.tool_choice, names)}")
    if call.prompt is None and not call.messages and not call.continues:
        raise invalid("the conversation is empty; add a message")
    _check_sampling(call.sampling)
    return call


def _check_sampling(sampling: Sampling) -> None:
    numbers = {"temperature": (sampling.temperature, 0.0, 2.0), "top_p": (sampling.top_p, 0.0, 1.0)}
    for name, (value, minimum, maximum) in numbers.items():
        if value is not None and not (isfinite(value) and minimum <= value <= maximum):
            raise invalid(f"{name}: {value} is not between {minimum:g} and {maximum:g}")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise invalid(f"max_tokens: {sampling.max_tokens} is less than 1")
    if any(not text for text in sampling.stop):
        raise invalid("stop: a stop string is empty; leave it out")


def unsupported(part: Struct, path: str) -> GatewayError:
    """Return the refusal of a part that can't be in its message."""
    kind = str(type(part).__struct_config__.tag)
    remedy = _TEXT_ONLY if "image" in kind else _TEXT_AND_IMAGES
    return invalid(f"{path}: {kind} is not supported: {remedy}", "unsupported_content")


class RequestImages:
    """Images of one request, by hash. In messages, the data of an image is its hash."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        """Bytes of each image."""
        self._count = 0
        self._pixels = 0

    def add_url(self, url: str, path: str) -> ImagePart:
        """Add an image that is a `data:` URL.

        :param path: its path in the body.
        :raises GatewayError: if it is another address, or no image within the limits.
        """
        if (match := _DATA_URL.match(url[:100])) is None:
            raise invalid(
                f"{path}: the gateway fetches no address; send the image as data:image/png;base64,…",
                "image_address",
            )
        return self.add_base64(match[1], url[match.end() :], path)

    def add_base64(self, mime: str, text: str, path: str) -> ImagePart:
        """Add an image in base64.

        :param mime: its media type.
        :param path: its path in the body.
        :raises GatewayError: if it is no image within the limits.
        """
        mime = {"image/jpg": "image/jpeg"}.get(mime.lower(), mime.lower())
        if mime not in IMAGE_TYPES:
            raise invalid(
                f"{path}: {mime[:60]!r} is not supported; send {IMAGE_FORMATS}", "unsupported_image"
            )
        try:
            data = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            raise invalid(f"{path}: not valid base64", "invalid_image") from None
        return self.add(data, mime, path)

    def add(self, data: bytes, mime: str, path: str) -> ImagePart:
        """Add an image.

        :param path: its path in the body.
        :raises GatewayError: if it is of another type, or over a limit.
        """
        check_limit("images of a conversation", self._count + 1, MAX_IMAGES, "leave earlier ones out")
        check_limit(f"{path}: bytes of an image", len(data), MAX_IMAGE_BYTES, "make it smaller")
        if (actual := mime_of_image(data)) != mime:
            problem = f"it is {actual}, not {mime}; name its type" if actual else f"no {IMAGE_FORMATS} image"
            raise invalid(f"{path}: {problem}", "invalid_image")
        try:
            width, height = image_size(data)
        except ValueError as error:
            raise invalid(f"{path}: {error}; send a whole {mime} image", "invalid_image") from None
        check_limit(f"{path}: pixels of an image", width * height, MAX_IMAGE_PIXELS, "make it smaller")
        self._count += 1
        self._pixels += width * height
        check_limit("pixels of all images", self._pixels, MAX_PIXELS, "leave earlier ones out")
        hash = Blob.of(data, mime).hash
        self.data[hash] = data
        return ImagePart(hash.encode(), mime)


def check_limit(name: str, number: int, limit: int, remedy: str) -> None:
    """Refuse a number over a limit.

    :raises GatewayError: 413.
    """
    if number > limit:
        raise GatewayError(413, f"{name}: {number:,}, at most {limit:,}; {remedy}", code="too_large")


def check_images(messages: Sequence[Message], data: Mapping[str, bytes]) -> None:
    """Check the limits of a conversation whose messages arrived in several requests.

    :param data: bytes of its images, by hash.
    :raises GatewayError: if it is over one.
    """
    images = RequestImages()
    for image in images_of(messages):
        images.add(data[hash_of(image)], image.mime, "previous_response_id")


class ConversationBuilder:
    """Builds a conversation in canonical form: equal conversations in different APIs give equal messages."""

    def __init__(self) -> None:
        self.images = RequestImages()
        """Images of the messages."""
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}
        self._added = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages so far."""
        return tuple(self._messages)

    def add_system(self, texts: Sequence[str]) -> None:
        """Add a message of the system."""
        self._count()
        self._messages.append(Message("system", tuple(map(TextPart, texts))))

    def add_user(self, parts: Sequence[TextPart | ImagePart]) -> None:
        """Add a message of the user."""
        self._count()
        self._messages.append(Message("user", tuple(parts)))

    def add_answer(
        self,
        texts: Sequence[str],
        calls: Sequence[ToolCall] = (),
        reasoning: str = "",
        *,
        extend: bool = False,
    ) -> None:
        """Add an answer of the model.

        :param extend: add to an answer right before it.
        """
        self._count()
        self._names |= {call.id: call.name for call in calls}
        parts = (*(TextPart(text) for text in texts if text or not calls), *calls)
        if extend and self._messages and self._messages[-1].role == "assistant":
            before = self._messages.pop()
            parts, reasoning = (*before.parts, *parts), before.reasoning or reasoning
        self._messages.append(Message("assistant", parts, reasoning=reasoning))

    def add_result(self, call: str, parts: Sequence[TextPart | ImagePart], *, failed: bool = False) -> None:
        """Add the result of a tool call; consecutive ones share a message."""
        self._count()
        reply = ToolReply(call, self._names.get(call, ""), tuple(parts), failed)
        last = self._messages[-1] if self._messages else None
        if last is not None and last.parts and isinstance(last.parts[0], ToolReply):
            self._messages[-1] = Message("user", (*last.parts, reply))
        else:
            self._messages.append(Message("user", (reply,)))

    def _count(self) -> None:
        self._added += 1
        if self._added > MAX_MESSAGES:
            raise GatewayError(
                413,
                f"a conversation may have at most {MAX_MESSAGES:,} messages; send less",
                code="too_large",
            )


def texts_of(parts: Iterable[TextPart | ImagePart]) -> list[str]:
    """Return the texts of parts without images."""
    return [part.text for part in parts if isinstance(part, TextPart)]


def tool_call(call: str, name: str, arguments: str | dict[str, Any]) -> ToolCall:
    """Return a tool call; its arguments are `None` unless they are a JSON object."""
    if isinstance(arguments, dict):
        return ToolCall(call, name, arguments, encode(arguments).decode())
    try:
        decoded: object = decode_json(arguments or "{}")
    except JsonError:
        decoded = None
    return ToolCall(call, name, decoded if is_object(decoded) else None, arguments)


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as the model wrote them."""
    return call.raw_arguments or encode(call.arguments or {}).decode()


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; those that are none are its field `written`."""
    return {"written": call.raw_arguments} if call.arguments is None else call.arguments


def tool_spec(name: str, description: str | None, schema: dict[str, Any] | None, path: str) -> ToolSpec:
    """Return a tool.

    :raises GatewayError: if its name is not valid.
    """
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{path}.name: use letters, digits, _ and -, at most 128")
    return ToolSpec(name, description or "", schema or {"type": "object", "properties": {}})


def total_usage(answers: Sequence[Completion[None]]) -> Usage:
    """Return the usage of a call: its prompt counts once."""
    used = [answer.usage for answer in answers]
    prompt = max((usage.prompt_tokens for usage in used), default=0)
    return Usage(1, prompt, sum(usage.completion_tokens for usage in used))


def cached_tokens(answers: Sequence[Completion[None]]) -> int:
    """Return the number of tokens of the prompt that were in the model's cache."""
    return max((answer.cached_tokens for answer in answers), default=0)


def unsent(answer: Completion[None], sent: str) -> str:
    """Return the text of an answer that was not sent yet.

    :raises GatewayError: if other text was sent.
    """
    if not answer.text.startswith(sent):
        raise GatewayError(
            502, "the model's answer differs from the text that was sent", code="broken_stream"
        )
    return answer.text[len(sent) :]


def openai_failure(error: GatewayError) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code or None}}
