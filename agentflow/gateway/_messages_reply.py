"""Answers of the messages API: one JSON body, or its events."""

from collections.abc import Iterator, Sequence
from typing import Any

from agentflow.gateway._conversation import arguments_object
from agentflow.gateway._dialect import cached_tokens, encode, event, total_usage, unsent
from agentflow.models import Completion

_SIGNATURE = "agentflow"
"""Signature of thinking; clients send it back unchanged."""


class MessagesReply:
    """Writes the answer to one request."""

    ping = event({"type": "ping"}, "ping")

    def __init__(self, model: str) -> None:
        self._model = model
        self._sent = ""
        self._index = 0

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        answer = answers[0]
        message = self._message(answer.id, list(_content(answer, answer.text)), _usage(answers))
        return encode({**message, **_stopped(answer)})

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events."""
        message = self._message(answer, [], {"input_tokens": 0, "output_tokens": 0})
        yield _event("message_start", message=message)
        yield self.ping

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text."""
        if not self._sent:
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        self._sent += text
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        answer = answers[0]
        rest = unsent(answer, self._sent)
        if self._sent:
            if rest:
                yield from self.piece(rest)
            yield _event("content_block_stop", index=0)
            self._index, rest = 1, ""
        for block in _content(answer, rest, begun=bool(self._sent)):
            yield from self._block(block)
        usage = _usage(answers)
        yield _event("message_delta", delta=_stopped(answer), usage=usage)
        yield _event("message_stop")

    def _block(self, block: dict[str, Any]) -> Iterator[bytes]:
        index, self._index = self._index, self._index + 1
        empty: dict[str, dict[str, Any]] = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        yield _event("content_block_start", index=index, content_block={**block, **empty[block["type"]]})
        deltas: dict[str, list[dict[str, Any]]] = {
            "text": [{"type": "text_delta", "text": block.get("text")}],
            "thinking": [
                {"type": "thinking_delta", "thinking": block.get("thinking")},
                {"type": "signature_delta", "signature": _SIGNATURE},
            ],
            "tool_use": [{"type": "input_json_delta", "partial_json": encode(block.get("input")).decode()}],
        }
        for delta in deltas[block["type"]]:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)

    def _message(self, answer: str, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        head = {"id": f"msg_{answer}", "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _event(name: str, /, **fields: object) -> bytes:
    return event({"type": name, **fields}, name)


def _content(answer: Completion[None], text: str, *, begun: bool = False) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": _SIGNATURE}
    if text or not (answer.calls or begun):
        yield {"type": "text", "text": text}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)}


def _stopped(answer: Completion[None]) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    if answer.stop and answer.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    return {"stop_reason": reasons[answer.finish], "stop_sequence": None}


def _usage(answers: Sequence[Completion[None]]) -> dict[str, Any]:
    used, cached = total_usage(answers), cached_tokens(answers)
    return {
        "input_tokens": used.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used.completion_tokens,
    }
