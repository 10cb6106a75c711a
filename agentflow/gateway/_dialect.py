"""Parts that all model APIs share: strict bodies, errors, usage and events."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Struct

from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import Completion, Message, Sampling
from agentflow.settings import nearest
from agentflow.trace import Usage

T = TypeVar("T")

_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<place>.*?)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_WRONG_TAG = re.compile(r"Invalid (?:enum )?value '?(.*?)'?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LONGEST_MESSAGE = 500
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


class Arrival(Struct, frozen=True):
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

    def parse(self, body: bytes, arrival: Arrival) -> ParsedRequest:
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
    return GatewayError(400, _CONTROL.sub(" ", message)[:_LONGEST_MESSAGE], code=code)


def encode(value: object) -> bytes:
    """Return JSON."""
    return _ENCODER.encode(value)


def event(data: object, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return b"".join((head, _ENCODER.encode(data), b"\n\n"))


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]", known: Iterable[type[Struct]]) -> T:
    """Decode a body strictly.

    :param known: types whose fields are proposed for unknown ones: first that of the body, then those inside.
    :raises GatewayError: if it is no JSON, has unknown fields, or values of other types.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(explain(error, known)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def convert(value: object, type: type[list[T]], place: str, known: Iterable[type[Struct]]) -> T:
    """Convert a decoded part of a body strictly.

    :param type: list of the type.
    :param place: its path in the body.
    :raises GatewayError: like `decode`.
    """
    try:
        return msgspec.convert([value], type)[0]
    except msgspec.ValidationError as error:
        raise invalid(explain(error, known, place)) from None


def explain(error: msgspec.ValidationError, known: Iterable[type[Struct]], place: str = "") -> str:
    """Describe a validation error in one line: place, problem, and the nearest known name."""
    found = _PLACE.fullmatch(str(error))
    problem, inner = (found["problem"], found["place"] or "") if found else (str(error), "")
    where = place + inner.removeprefix("[0]") if place else inner
    if unknown := _UNKNOWN.fullmatch(problem):
        types = list(known)
        names = [name for each in (types if inner else types[:1]) for name in each.__struct_encode_fields__]
        path = f"{where}.{unknown[1]}" if where else unknown[1]
        return f"{path} is unknown{nearest(unknown[1], names)}"
    if where.endswith(("type", "role")) and (tag := _WRONG_TAG.fullmatch(problem)):
        return f"{where}: {tag[1]} is not supported"
    return f"{where}: {problem[0].lower()}{problem[1:]}" if where else problem


def extra_sampling(body: Struct) -> dict[str, Any]:
    """Return the further sampling parameters of a body."""
    found = {name: getattr(body, name, None) for name in _SAMPLED}
    return {name: value for name, value in found.items() if value is not None}


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
    for name, (value, least, most) in numbers.items():
        if value is not None and not (isfinite(value) and least <= value <= most):
            raise invalid(f"{name}: {value} is not between {least:g} and {most:g}")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise invalid(f"max_tokens: {sampling.max_tokens} is less than 1")
    if any(not text for text in sampling.stop):
        raise invalid("stop: a stop string is empty; leave it out")


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
