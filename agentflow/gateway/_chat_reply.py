"""Answers of the chat completions API: one JSON body, or its events."""

from collections.abc import Iterator, Sequence
from typing import Any

from agentflow.gateway._conversation import arguments_text
from agentflow.gateway._dialect import cached_tokens, encode, event, total_usage, unsent
from agentflow.models import Completion


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
            {"index": index, "message": _said(answer), "logprobs": None, "finish_reason": answer.finish}
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


def _said(answer: Completion[None]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    said["refusal"] = None
    if answer.reasoning:
        said["reasoning_content"] = answer.reasoning
    return {**said, "tool_calls": _calls(answer)} if answer.calls else said


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
