"""Conversations and tools in canonical form, whatever API they arrived in."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from agentflow._decoding import JsonError, decode_json
from agentflow._typeguards import is_object
from agentflow.gateway._dialect import encode, invalid
from agentflow.gateway._images import RequestImages
from agentflow.gateway._types import GatewayError
from agentflow.models import ImagePart, Message, TextPart, ToolCall, ToolReply, ToolSpec

MOST_MESSAGES = 10_000
"""Messages and results of tools of a conversation. Reading them holds the event loop: this many take about 0.1 s."""
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")


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
        if self._added > MOST_MESSAGES:
            raise GatewayError(
                413,
                f"a conversation may have at most {MOST_MESSAGES:,} messages; send less",
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


def tool_spec(name: str, description: str | None, schema: dict[str, Any] | None, place: str) -> ToolSpec:
    """Return a tool.

    :raises GatewayError: if its name is not valid.
    """
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{place}.name: use letters, digits, _ and -, at most 128")
    return ToolSpec(name, description or "", schema or {"type": "object", "properties": {}})
