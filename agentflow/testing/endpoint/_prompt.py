"""What the fake model reads of a request."""

import re
from hashlib import blake2b
from typing import Any, Literal, Self

import msgspec
from msgspec import Struct

__all__ = ["Prompt", "Tool", "ToolUse", "read_prompt"]

_WRITTEN_SCHEMA = re.compile(r"^JSON schema of `([a-z_]+)`: (\{.*\})$", re.MULTILINE)
_OBSERVATION = re.compile(r'<observation number="(\d+)">\n(.*?)\n?</observation>', re.DOTALL)


class _Part(Struct):
    text: str = ""


class _Function(Struct):
    name: str
    arguments: str


class ToolUse(Struct):
    """A tool that it wanted called."""

    id: str
    """What the reply is known by."""
    function: _Function
    """Which, and with what."""
    type: str = "function"
    """There is no other."""

    @classmethod
    def of(cls, identifier: str, name: str, arguments: str) -> Self:
        """One call."""
        return cls(identifier, _Function(name, arguments))

    @property
    def raw_arguments(self) -> str:
        """As its tokens say it."""
        return f"{self.id} {self.function.name} {self.function.arguments}"


class _Message(Struct):
    role: str = "user"
    content: str | list[_Part] | None = None
    tool_calls: list[ToolUse] = []

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class Tool(Struct):
    """A tool that the model may have called."""

    name: str = ""
    """Its name."""
    parameters: dict[str, Any] = {}
    """The schema of its arguments."""


class _Offered(Struct):
    function: Tool


class _Schema(Struct):
    name: str = ""
    schema: dict[str, Any] = {}


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _Schema | None = None


class _Body(Struct):
    model: str = ""
    messages: list[_Message] = []
    response_format: _Format | None = None
    tools: list[_Offered] = []
    tool_choice: str = "auto"
    return_token_ids: bool = False


_DECODER = msgspec.json.Decoder(_Body)


class Prompt:
    """One request, read."""

    def __init__(self, body: _Body) -> None:
        self.model = body.model
        self.form = body.response_format.type if body.response_format else "text"
        spoken = [message.text for message in body.messages if message.role != "system"]
        self.text = "\n".join(spoken)
        self.begin = spoken[0] if spoken else ""
        asked = body.response_format.json_schema if body.response_format else None
        written = None if asked else _WRITTEN_SCHEMA.search(spoken[-1] if spoken else "")
        if asked is not None:
            self.name, self.schema = asked.name, asked.schema
        elif written is not None:
            self.name, self.schema = written[1], msgspec.json.decode(written[2], type=dict[str, Any])
        else:
            self.name, self.schema = "", {}
        may_call = body.tool_choice != "none"
        self.tools = [one.function for one in body.tools] if may_call else []
        self.turns = sum(bool(message.tool_calls) for message in body.messages)
        self.exact = body.return_token_ids
        self.rendered = "".join(f"<{message.role}>{_written(message)}\n" for message in body.messages)
        self.words = sum(len(message.text) for message in body.messages) // 4
        self.hash = int.from_bytes(blake2b(self.text.encode(), digest_size=8).digest(), "big")

    def observations(self) -> list[tuple[int, str]]:
        """The numbered observations of the prompt."""
        return [(int(number), text) for number, text in _OBSERVATION.findall(self.text)]

    def newest(self) -> str:
        """The observation that came last; without one the seed; without marks all that was said."""
        for mark in ("observation", "seed"):
            start = self.text.rfind(f"<{mark}")
            if start >= 0:
                end = self.text.find(f"</{mark}>", start)
                return self.text[self.text.find(">", start) + 1 : end if end > 0 else None]
        return self.text


def _written(message: _Message) -> str:
    """All of it, as a template writes it."""
    return message.text + "".join(call.raw_arguments for call in message.tool_calls)


def read_prompt(body: bytes) -> Prompt:
    """Read a request's body.

    :raises msgspec.MsgspecError: if it is no request.
    """
    return Prompt(_DECODER.decode(body))
