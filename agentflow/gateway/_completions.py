"""Completions API of the gateway: a prompt without roles."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from agentflow.gateway._chat import SamplingBody, StreamOptions
from agentflow.gateway._chat_reply import openai_usage
from agentflow.gateway._dialect import (
    Arrival,
    ParsedRequest,
    checked,
    decode,
    encode,
    event,
    invalid,
    openai_failure,
    unsent,
)
from agentflow.gateway._types import GatewayCall, GatewayError
from agentflow.models import Completion


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


_DECODER = msgspec.json.Decoder(CompletionsBody)


class CompletionsApi:
    """Completions: `/v1/completions`."""

    def parse(self, body: bytes, arrival: Arrival) -> ParsedRequest:
        """Parse the body of a request."""
        given = decode(body, _DECODER, (CompletionsBody, StreamOptions))
        ignored = given.ignored()
        if given.best_of not in (None, given.n or 1):
            raise invalid("best_of is not supported: ask for n answers")
        call = GatewayCall(
            dialect="completions",
            prompt=_prompt(given.prompt),
            answers=given.n or 1,
            sampling=given.sampling(),
            stream=bool(given.stream),
        )
        reply = CompletionsReply(given.model, arrival.created, given.wants_usage)
        return ParsedRequest(call=checked(call), model=given.model, reply=reply, ignored=ignored)

    def failure(self, error: GatewayError) -> bytes:
        """Return the body of an error."""
        return encode(openai_failure(error))

    def failure_event(self, error: GatewayError) -> bytes:
        """Return the event of an error."""
        return event(openai_failure(error))


def _prompt(given: str | list[int | str | list[int]]) -> str | tuple[int, ...]:
    if isinstance(given, str):
        return given
    ids = tuple(each for each in given if isinstance(each, int))
    if ids and len(ids) == len(given):
        return ids
    if len(given) != 1 or isinstance(given[0], int):
        raise invalid("prompt: send one prompt in each request, as text or as ids of tokens")
    return given[0] if isinstance(given[0], str) else tuple(given[0])


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
