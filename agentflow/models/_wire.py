"""Requests and answers as they go over the wire."""

import base64
from typing import Any

import msgspec
from msgspec import Struct, structs

from agentflow.models._forms import Form, instruction, response_format
from agentflow.models._protocol import Image, Message, Sampling, Text
from agentflow.trajectory import Usage

__all__ = ["Answered", "encode_request", "read_answer"]


class _Address(Struct):
    url: str


class _TextPart(Struct, tag="text"):
    text: str


class _ImagePart(Struct, tag="image_url"):
    image_url: _Address


class _Said(Struct):
    role: str
    content: str | list[_TextPart | _ImagePart]


class _Request(Struct, omit_defaults=True, kw_only=True):
    model: str
    messages: list[_Said]
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    response_format: dict[str, Any] | None = None


class _Spoken(Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(Struct):
    message: _Spoken
    finish_reason: str | None = None


class _Tokens(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: _Tokens | None = None


class Answered(Struct, frozen=True):
    """What the endpoint answered."""

    text: str
    """The words."""
    finish: str
    """Why they end."""
    refusal: str
    """Why there are none, in the model's words."""
    usage: Usage
    """What it consumed."""
    model: str
    """Who answered."""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)


def encode_request(
    model: str,
    messages: tuple[Message, ...],
    sampling: Sampling,
    longest: str,
    asked: tuple[Form, str, dict[str, Any]] | None,
) -> bytes:
    """The body of a request.

    :param longest: how the longest answer is called at this endpoint.
    :param asked: the form of the answer, its name and schema; `None`: free text.
    """
    said = [_say(message) for message in messages]
    wanted = None
    if asked is not None:
        wanted = response_format(*asked)
        if asked[0] != "json_schema":
            _append(said, instruction(*asked[1:]))
    request = _Request(
        model=model,
        messages=said,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=sampling.stop,
        response_format=wanted,
    )
    setattr(request, longest, sampling.max_tokens)
    if not sampling.extra:
        return _ENCODER.encode(request)
    fields = {name: value for name, value in structs.asdict(request).items() if value not in (None, ())}
    return _ENCODER.encode({**fields, **sampling.extra})


def read_answer(body: bytes, sent: int) -> Answered:
    """Read the body of an answer.

    :param sent: the request's length: what an endpoint that counts no tokens is taken to have read.
    :raises msgspec.MsgspecError: if it is none.
    """
    answer = _DECODER.decode(body)
    if not answer.choices:
        raise msgspec.ValidationError("it has no choices")
    choice = answer.choices[0]
    text = choice.message.content or ""
    if answer.usage is not None:
        usage = Usage(1, answer.usage.prompt_tokens, answer.usage.completion_tokens)
    else:
        usage = Usage(1, sent // 4 + 1, len(text) // 4 + 1)
    finish = choice.finish_reason or "stop"
    return Answered(text, finish, choice.message.refusal or "", usage, answer.model or "")


def _say(message: Message) -> _Said:
    parts = message.parts
    # Endpoints that know no pictures want words as a plain string.
    if len(parts) == 1 and isinstance(part := parts[0], Text):
        return _Said(message.role, part.text)
    if not any(isinstance(part, Image) for part in parts):
        return _Said(message.role, "\n".join(part.text for part in parts if isinstance(part, Text)))
    return _Said(message.role, [_part(part) for part in parts if isinstance(part, Text | Image)])


def _part(part: Text | Image) -> _TextPart | _ImagePart:
    if isinstance(part, Text):
        return _TextPart(part.text)
    return _ImagePart(_Address(f"data:{part.mime};base64,{base64.b64encode(part.data).decode()}"))


def _append(said: list[_Said], text: str) -> None:
    """Say it last, so that what stands before stays the beginning of the next prompt too."""
    last = said[-1] if said else None
    if last is None or last.role != "user":
        said.append(_Said("user", text))
    elif isinstance(last.content, str):
        last.content = f"{last.content}\n\n{text}"
    else:
        last.content.append(_TextPart(text))
