"""Requests as the fake model reads them."""

import re
from hashlib import blake2b
from typing import Any, Literal, Self

import msgspec
from msgspec import Struct

_WRITTEN_SCHEMA = re.compile(r"^JSON schema of `([a-z_]+)`: (\{.*\})$", re.MULTILINE)
_CALL = re.compile(r'^([^\n]*)\n<observation number="\d+">\n(.*?)\n?</observation>', re.DOTALL | re.MULTILINE)
_OBSERVATION = re.compile(r'<observation number="(\d+)">\n(.*?)\n?</observation>', re.DOTALL)


class _Part(Struct):
    text: str = ""


class _Function(Struct):
    name: str
    arguments: str


class FakeToolCall(Struct):
    """Tool call of the fake model."""

    id: str
    """Id that its reply refers to."""
    function: _Function
    """Name and arguments."""
    type: str = "function"
    """Always `function`."""

    @classmethod
    def of(cls, identifier: str, name: str, arguments: str) -> Self:
        """Create a call."""
        return cls(identifier, _Function(name, arguments))


class PromptMessage(Struct):
    """Message of a conversation."""

    role: str = "user"
    content: str | list[_Part] | None = None
    tool_calls: list[FakeToolCall] = []

    @property
    def text(self) -> str:
        """Its text."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class OfferedTool(Struct):
    """Tool that the fake model may call."""

    name: str = ""
    """Name."""
    parameters: dict[str, Any] = {}
    """JSON schema of its arguments."""


class _Offered(Struct):
    function: OfferedTool


class _Schema(Struct):
    name: str = ""
    schema: dict[str, Any] = {}


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _Schema | None = None


class PromptBody(Struct):
    """Request of the chat API."""

    model: str = ""
    messages: list[PromptMessage] = []
    response_format: _Format | None = None
    tools: list[_Offered] = []
    tool_choice: str = "auto"
    return_token_ids: bool = False


_DECODER = msgspec.json.Decoder(PromptBody)


class Prompt:
    """One decoded request."""

    def __init__(self, body: PromptBody) -> None:
        self.model = body.model
        self.form = body.response_format.type if body.response_format else "text"
        spoken = [message.text for message in body.messages if message.role != "system"]
        self.text = "\n".join(spoken)
        self.system = "\n".join(message.text for message in body.messages if message.role == "system")
        self.begin = spoken[0] if spoken else ""
        requested_schema = body.response_format.json_schema if body.response_format else None
        written = None if requested_schema else _WRITTEN_SCHEMA.search(spoken[-1] if spoken else "")
        if requested_schema is not None:
            self.name, self.schema = requested_schema.name, requested_schema.schema
        elif written is not None:
            self.name, self.schema = written[1], msgspec.json.decode(written[2], type=dict[str, Any])
        else:
            self.name, self.schema = "", {}
        may_call = body.tool_choice != "none"
        self.tools = [tool.function for tool in body.tools] if may_call else []
        self.turns = sum(bool(message.tool_calls) for message in body.messages)
        self.exact = body.return_token_ids
        self.body = body
        self.words = sum(len(message.text) for message in body.messages) // 4
        self.hash = int.from_bytes(blake2b(self.text.encode(), digest_size=8).digest(), "big")

    def observations(self) -> list[tuple[int, str]]:
        """Return the numbered observations of the prompt."""
        return [(int(number), text) for number, text in _OBSERVATION.findall(self.text)]

    def calls(self) -> list[tuple[str, str]]:
        """Return the calls of an exploration as the prompt shows them, each with its observation."""
        return [(call, text) for call, text in _CALL.findall(self.text)]

    def seed(self) -> str:
        """Return the first line of the seed, behind which its values are listed; empty if the prompt has none."""
        return self.text.partition("<seed>")[2].strip().partition("\n")[0].partition("</seed>")[0]

    def newest(self) -> str:
        """Return the newest observation; without one the seed; without marks the whole text."""
        for mark in ("observation", "seed"):
            start = self.text.rfind(f"<{mark}")
            if start >= 0:
                end = self.text.find(f"</{mark}>", start)
                return self.text[self.text.find(">", start) + 1 : end if end > 0 else None]
        return self.text


def prompt_of_body(body: PromptBody, schema: dict[str, Any] | None = None) -> Prompt:
    """Return a decoded request.

    :param schema: schema of the answer.
    """
    if schema is not None:
        name = str(schema.get("title", "")).lower()
        body.response_format = _Format("json_schema", _Schema(name, schema))
    return Prompt(body)


def read_prompt(body: bytes) -> Prompt:
    """Decode the body of a request.

    :raises msgspec.MsgspecError: if it is not a valid request.
    """
    return Prompt(_DECODER.decode(body))
