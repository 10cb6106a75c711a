"""Answers of vLLM's token APIs: sampled tokens, whole or as events, and the text and tool calls in them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow.errors import ModelFailureKind
from agentflow.models._apis import ApiAnswer
from agentflow.models._apis._messages import call_id, parse_call
from agentflow.models._apis._openai import AnswerLogprobs, tokens_of
from agentflow.models._request_error import RequestError
from agentflow.trace import Usage

_MARK_IDS: Final = 64


class _Span(Struct):
    version: str
    start: int
    end: int


class _SampledChoice(Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: AnswerLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[_Span] | None = None


class _GeneratedBody(Struct):
    choices: list[_SampledChoice]
    model: str | None = None
    prompt_token_ids: list[int] | None = None


class _DerenderedFunction(Struct):
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _DerenderedCall(Struct):
    function: _DerenderedFunction


class _DerenderedMessage(Struct):
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_DerenderedCall] | None = None


class _DerenderedChoice(Struct):
    message: _DerenderedMessage


class _Read(Struct):
    choices: list[_DerenderedChoice]


_ENCODER = msgspec.json.Encoder()
_GENERATED = msgspec.json.Decoder(_GeneratedBody)
_READ = msgspec.json.Decoder(_Read)


class AnswerStream:
    """One answer that arrives as server-sent events."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._sent = ""
        self._length = 0
        self._failure = ""
        self._chunks: list[_SampledChoice] = []

    def add(self, line: bytes) -> None:
        """Add a line."""
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return
        if data.startswith(b'{"error"'):
            self._failure = data.decode(errors="replace")[:300]
            return
        chunk = _GENERATED.decode(data)
        if chunk.prompt_token_ids is not None:
            # The first one; after a repeated request, text that was passed on is not passed on again.
            self._sent = max(self._sent, self._text, key=len)
            self._length, self._chunks, self._failure = 0, [], ""
        for choice in chunk.choices:
            sent = self._sent[self._length : self._length + len(choice.text)]
            if not choice.text.startswith(sent):
                raise RequestError(
                    ModelFailureKind.UNAVAILABLE, "a repeated answer differs from its beginning"
                )
            self._chunks.append(choice)
            self._length += len(choice.text)
            if new := choice.text[len(sent) :]:
                self._on_text(new)

    @property
    def _text(self) -> str:
        return "".join(choice.text for choice in self._chunks)

    def answer(self, prompt: Sequence[int]) -> ApiAnswer:
        """Return the whole answer.

        :raises RequestError: if it is incomplete.
        """
        last = self._chunks[-1] if self._chunks else _SampledChoice()
        if self._failure or last.finish_reason is None:
            why = self._failure or "the answer ended early"
            raise RequestError(ModelFailureKind.UNAVAILABLE, why, retry=False)
        ids = [id for one in self._chunks for id in one.token_ids or ()]
        values = [value for one in self._chunks for value in (one.logprobs or AnswerLogprobs()).values]
        whole = replace(last, text=self._text, token_ids=ids, logprobs=AnswerLogprobs(token_logprobs=values))
        return _answer(whole, prompt, "")


def read_answers(body: bytes, ids: Sequence[int]) -> list[ApiAnswer]:
    """Decode sampled answers.

    :param ids: their prompt.
    :raises msgspec.MsgspecError: if they can't be decoded.
    """
    generated = _GENERATED.decode(body)
    if not generated.choices:
        raise msgspec.ValidationError("no choices")
    prompt = generated.prompt_token_ids
    ordered = sorted(generated.choices, key=lambda choice: choice.index)
    return [_answer(one, prompt or one.prompt_token_ids or ids, generated.model or "") for one in ordered]


def _answer(choice: _SampledChoice, prompt: Sequence[int], model: str) -> ApiAnswer:
    finish = choice.finish_reason or "stop"
    spans = tuple((span.version, span.start, span.end) for span in choice.weight_versions or ())
    tokens = tokens_of(prompt, choice.token_ids, choice.logprobs, finish, spans)
    return ApiAnswer(
        choice.text,
        finish,
        usage=Usage(1, len(tokens.prompt), len(tokens.sampled)),
        model=model,
        tokens=tokens,
        stop=choice.stop_reason if isinstance(choice.stop_reason, str) else "",
    )


def content_ids(answer: ApiAnswer) -> tuple[int, ...]:
    """Return the sampled tokens without the one that closes the message."""
    sampled = () if answer.tokens is None else answer.tokens.sampled
    return sampled[:-1] if answer.finish == "stop" and not answer.stop else sampled


def _parsed(message: _DerenderedMessage, answer: ApiAnswer) -> ApiAnswer:
    text = message.content or ""
    if answer.stop and answer.stop in text:
        # It stays in the tokens.
        text = text[: text.rindex(answer.stop)]
    # An answer with the same calls at another place has other ids.
    tokens = answer.tokens
    mark = tokens and _ENCODER.encode((len(tokens.prompt), tokens.prompt[-_MARK_IDS:], tokens.sampled))
    calls = tuple(
        parse_call(call_id(mark or b"", number), one.function.name, one.function.arguments)
        for number, one in enumerate(message.tool_calls or ())
    )
    finish = "tool_calls" if calls and answer.finish != "length" else answer.finish
    found = replace(answer, text=text, reasoning=message.reasoning or "", calls=calls, finish=finish)
    return found.without_reasoning()


def parse_answers(body: bytes, answers: Sequence[ApiAnswer]) -> list[ApiAnswer]:
    """Decode the answers of the engine's parsers.

    :param answers: the answers that they parsed, in order.
    :raises msgspec.MsgspecError: if they can't be decoded.
    """
    done = _READ.decode(body).choices
    if len(done) != len(answers):
        raise msgspec.ValidationError(f"{len(done)} parsed answers of {len(answers)}")
    return [_parsed(one.message, answer) for one, answer in zip(done, answers, strict=True)]
