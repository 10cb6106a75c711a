"""Conversations whose tokens are known: the calls that were answered, and the call that a new prompt continues.

The messages of a prompt are walked with a rolling hash. An assistant message is looked up among the answers that were given
after exactly these messages, by the ids of its tool calls, by its mark, or by its content. A known one enters the hash as
the id of its call. So a prompt continues a call only if everything before is the same: parallel sub-agents, retries,
several answers to one prompt and shortened histories can't be mistaken for each other.
"""

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from math import inf
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS
from agentflow.models._protocol import Message, TextPart, ToolCall, ToolSpec
from agentflow.trace import Tokens

_ENCODER = msgspec.json.Encoder(order="sorted")
_SIZE = 16


class _Position(Struct, frozen=True):
    """Position in a conversation: hashes of all messages before it, with and without the offered tools."""

    key: bytes
    words: bytes

    def then(self, data: bytes) -> "_Position":
        """Return the position after another message.

        :param data: its digest.
        """
        return _Position(_hash(self.key, data), _hash(self.words, data))


class PromptOrigin(StrEnum):
    """Origin of the tokens of a prompt. The set is closed."""

    OPENING = "opening"
    """No earlier answer is in the conversation."""
    APPENDED = "appended"
    """Tokens of an earlier call, and rendered new messages."""
    TOOLS = "tools"
    """Rendered: the offered tools changed."""
    REWRITTEN = "rewritten"
    """Rendered from the first change on: earlier messages were changed or shortened."""
    FOREIGN = "foreign"
    """Rendered from there on: an answer in the conversation was not sampled in this episode."""
    TEMPLATE = "template"
    """Rendered: the chat template alters earlier messages, so a prefix can't be proven."""
    RECORDED = "recorded"
    """Rendered by the engine: it has no interface for tokens."""
    IMAGES = "images"
    """Sent as messages and recorded without tokens: they do not determine a prompt with images."""


class ConversationMatch(Struct, frozen=True):
    """The part of a prompt whose tokens are known."""

    origin: PromptOrigin
    """Origin of the tokens of the prompt."""
    position: _Position
    """Position after the prompt."""
    parent: str = ""
    """Id of the call that it continues; empty: none."""
    count: int = 0
    """Number of messages up to the answer of that call."""
    ids: "array[int]" = array("i")
    """Tokens of these messages; empty if the model reports none."""

    def rendered(self, origin: PromptOrigin) -> "ConversationMatch":
        """Return the match of a prompt that was rendered as a whole."""
        return ConversationMatch(origin, self.position)

    def added(self, tokens: Tokens) -> Tokens:
        """Return tokens whose prompt holds only what follows the known ones."""
        return replace(tokens, prompt=tokens.prompt[len(self.ids) :]) if self.parent else tokens


class _AnsweredCall:
    """An answered call, without the texts of its prompt."""

    __slots__ = ("after", "answer", "digest", "id", "ids", "parent", "position")

    def __init__(
        self,
        id: str,
        parent: "_AnsweredCall | None",
        position: _Position,
        answer: Message,
        tokens: Tokens | None,
    ) -> None:
        self.id = id
        self.parent = parent
        self.position = position
        self.after = position.then(b"\0" + id.encode())
        self.answer = answer
        self.digest = _digest(answer)
        self.ids = array("i") if tokens is None else array("i", (*tokens.prompt, *tokens.sampled))
        """Tokens after those of the parent."""

    def upwards(self) -> "Iterator[_AnsweredCall]":
        """Iterate over the call and those that it continues, the first one last."""
        step: _AnsweredCall | None = self
        while step is not None:
            yield step
            step = step.parent


class _Walk(Struct):
    """A walk along the messages of a conversation."""

    position: _Position
    """Position after the last message."""
    call: _AnsweredCall | None = None
    """Last known answer."""
    count: int = 0
    """Number of messages up to it."""
    unknown: int = -1
    """Index of the first unknown answer after it; -1: none."""


class ConversationIndex:
    """Answered calls of one model or agent, each with the tokens it added. See docs/tokens.md.

    Nothing is awaited while it is read or changed, so parallel calls are independent.
    """

    def __init__(self, *, max_tokens: float = inf, by_mark: bool = False) -> None:
        """Start empty.

        :param max_tokens: maximum number of tokens to keep, four bytes each; the least recently used calls are dropped.
        :param by_mark: a mark identifies an answer, also after other messages.
        """
        self._max_tokens = max_tokens
        self._by_mark = by_mark
        self._size = 0
        self._calls: OrderedDict[str, _AnsweredCall] = OrderedDict()
        """Calls by id. One that others continue is more recent than these, so it is dropped after them."""
        self._after: dict[bytes, list[_AnsweredCall]] = defaultdict(list)
        """Answers by the hash of the messages before them, with and without the offered tools."""

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, id: str, match: ConversationMatch, answer: Message, tokens: Tokens | None) -> None:
        """Add a call; later prompts can continue it.

        :param match: that of its prompt.
        :param tokens: with a parent, their prompt holds only what follows the parent's tokens.
        """
        self._drop(id)
        call = _AnsweredCall(id, self._calls.get(match.parent), match.position, answer, tokens)
        self._calls[id] = call
        for hash in (call.position.key, call.position.words):
            self._after[hash].append(call)
        self._size += len(call.ids)
        self._use(call)
        while self._size > self._max_tokens and len(self._calls) > 1:
            self._drop(next(iter(self._calls)))

    def match(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        template: Mapping[str, Any] | None = None,
        *,
        digests: Sequence[bytes] | None = None,
    ) -> ConversationMatch:
        """Return the known beginning of a prompt.

        :param tools: offered tools; with others, none of the earlier tokens are used.
        :param template: options of the chat template, likewise.
        :param digests: `message_digests` of the messages, if they are known.
        """
        digests = message_digests(messages) if digests is None else digests
        begin = _Position(_hash(b"", _ENCODER.encode((tools, template or {}))), bytes(_SIZE))
        walk = self._walk(begin, messages, digests)
        origin = PromptOrigin.OPENING if walk.call is None else PromptOrigin.APPENDED
        if walk.unknown >= 0:
            origin = self._reason(begin, messages, digests, walk)
        if walk.call is None:
            return ConversationMatch(origin, walk.position)
        self._use(walk.call)
        ids = array("i")
        for call in [*walk.call.upwards()][::-1]:
            ids.extend(call.ids)
        return ConversationMatch(origin, walk.position, walk.call.id, walk.count, ids)

    def chain(self, id: str) -> list[str]:
        """Return the ids of the calls that a call continues, the first one first, and its own; empty: none."""
        return [call.id for call in self._calls[id].upwards()][::-1] if id in self._calls else []

    def _walk(
        self,
        position: _Position,
        messages: Iterable[Message],
        digests: Iterable[bytes],
        *,
        by_words: bool = False,
    ) -> _Walk:
        walk = _Walk(position)
        for index, (message, digest) in enumerate(zip(messages, digests, strict=True)):
            call = None
            if message.role == "assistant":
                call = self._calls.get(message.mark) if self._by_mark else None
                answers = self._after.get(walk.position.words if by_words else walk.position.key, ())
                call = call or _recognised(message, answers)
                if call is None and walk.unknown < 0:
                    walk.unknown = index
            if call is None:
                walk.position = walk.position.then(digest)
            else:
                walk.call, walk.count, walk.unknown, walk.position = call, index + 1, -1, call.after
        return walk

    def _reason(
        self, begin: _Position, messages: Sequence[Message], digests: Sequence[bytes], walk: _Walk
    ) -> PromptOrigin:
        """Return the reason for rendering an answer."""
        if self._walk(begin, messages, digests, by_words=True).count > walk.count:
            return PromptOrigin.TOOLS
        message = messages[walk.unknown]
        digest, ids = _digest(message), {call.id for call in _calls(message)}
        sampled = any(
            call.digest == digest or any(part.id in ids for part in _calls(call.answer))
            for call in self._calls.values()
        )
        return PromptOrigin.REWRITTEN if sampled else PromptOrigin.FOREIGN

    def _use(self, call: _AnsweredCall) -> None:
        for ancestor in call.upwards():
            if ancestor.id in self._calls:
                self._calls.move_to_end(ancestor.id)

    def _drop(self, id: str) -> None:
        call = self._calls.pop(id, None)
        if call is None:
            return
        self._size -= len(call.ids)
        for hash in (call.position.key, call.position.words):
            self._after[hash].remove(call)
            if not self._after[hash]:
                del self._after[hash]


def message_digests(messages: Iterable[Message]) -> list[bytes]:
    """Return a digest of the role and the content of each message, for `ConversationIndex.match`. See docs/tokens.md."""
    return [
        _hash(b"", _ENCODER.encode((message.role, [_content(part) for part in message.parts])))
        for message in messages
    ]


def _hash(before: bytes, data: bytes) -> bytes:
    return blake2b(before + data, digest_size=_SIZE).digest()


def _content(part: object) -> object:
    # The provider's data can differ from one request to the next.
    return replace(part, state=dict[str, Any]()) if isinstance(part, ToolCall) and part.state else part


def _text(message: Message, *, strip: bool = True) -> str:
    text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
    return text.strip() if strip else text


def _calls(message: Message) -> list[ToolCall]:
    return [part for part in message.parts if isinstance(part, ToolCall)]


def _called(call: ToolCall) -> tuple[str, object]:
    """Return the name and the arguments of a call, for comparison."""
    if call.arguments is not None:
        return call.name, call.arguments
    try:
        return call.name, msgspec.json.decode(call.raw_arguments)
    except DECODE_ERRORS:
        return call.name, call.raw_arguments


def _digest(message: Message) -> bytes:
    return _hash(b"", _ENCODER.encode((_text(message), [_called(call) for call in _calls(message)])))


def _recognised(message: Message, answers: Sequence[_AnsweredCall]) -> _AnsweredCall | None:
    """Return the newest answer that a message repeats."""
    if not answers:
        return None
    if message.mark:
        marked = next((answer for answer in answers if answer.id == message.mark), None)
        if marked is not None:
            return marked
    text, calls = _text(message), _calls(message)
    called, ids = [_called(call) for call in calls], [call.id for call in calls]
    exact = _text(message, strip=False)
    same: _AnsweredCall | None = None
    for candidate in reversed(answers):
        answer = candidate.answer
        answer_calls = _calls(answer)
        if [_called(call) for call in answer_calls] != called:
            continue
        # Many clients leave out the text beside calls.
        if text != _text(answer) and (text or not calls):
            continue
        if [call.id for call in answer_calls] == ids and (calls or exact == _text(answer, strip=False)):
            return candidate
        same = same or candidate
    return same
