"""Memory of an episode: the calls of one agent, and the call that a new prompt continues.

The messages of a prompt are walked with a rolling hash. An assistant message is looked up among the answers that were given
after exactly these messages, by the ids of its tool calls, by its response id, or by its content. A known one enters the
hash as the id of its call. So a prompt continues a call only if everything before is the same: parallel sub-agents, retries,
several answers to one prompt and shortened histories can't be mistaken for each other.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS
from agentflow.gateway._types import GatewayCall, PromptOrigin, RecordedCall
from agentflow.models import Message, TextPart, ToolCall, ToolSpec
from agentflow.trace import TokenCall, Tokens, TokenTree, Voice

_ENCODER = msgspec.json.Encoder(order="sorted")
_SIZE = 16


class PromptMatch(Struct, frozen=True):
    """The part of a prompt whose tokens are known."""

    origin: PromptOrigin
    """Origin of the prompt's tokens, provided that the rest can be rendered after the known ones."""
    place: "_PromptPlace"
    """Place after the prompt."""
    parent: str = ""
    """Id of the call that it continues; empty: none."""
    count: int = 0
    """Number of messages up to the answer of that call."""
    ids: "array[int]" = array("i")
    """Tokens of these messages; empty if the model reports none."""

    def rendered(self, origin: PromptOrigin) -> "PromptMatch":
        """Return the match of a prompt that was rendered as a whole."""
        return PromptMatch(origin, self.place)


class _CallNode:
    """A recorded call, without the texts of its prompt."""

    __slots__ = ("answer", "id", "ids", "parent")

    def __init__(self, record: RecordedCall, parent: "_CallNode | None") -> None:
        tokens = record.tokens
        self.id = record.id
        self.parent = parent
        self.ids = array("i") if tokens is None else array("i", (*tokens.prompt, *tokens.sampled))
        """Tokens after those of the parent."""
        self.answer = record.answer


class _PromptPlace(Struct, frozen=True):
    """Place in a conversation: hashes of all messages before it, with and without the offered tools."""

    key: bytes
    words: bytes

    def known(self, id: str) -> "_PromptPlace":
        """Return the place after the answer of a call."""
        return self.then(b"\0" + id.encode())

    def then(self, data: bytes) -> "_PromptPlace":
        """Return the place after another message.

        :param data: its digest.
        """
        return _PromptPlace(_hash(self.key, data), _hash(self.words, data))


class _PromptWalk(Struct):
    """A walk along the messages of a conversation."""

    place: _PromptPlace
    """Place after the last message."""
    node: _CallNode | None = None
    """Last known answer."""
    count: int = 0
    """Number of messages up to it."""
    unknown: int = -1
    """Index of the first unknown answer after it; -1: none."""


class PromptMemory:
    """Calls of one agent in one attempt at an episode. See docs/gateway.md.

    Nothing is awaited while it is read or changed, so parallel calls are independent.
    """

    def __init__(self, agent: str = "", *, trained: bool = True) -> None:
        """Start empty.

        :param agent: name of the agent.
        :param trained: the agent is trained.
        """
        self.agent = agent
        """Name of the agent."""
        self.trained = trained
        """The agent is trained."""
        self._nodes: dict[str, _CallNode] = {}
        self._after: dict[bytes, list[_CallNode]] = defaultdict(list)
        """Answers by the hash of the messages before them, with and without the offered tools."""
        self._said: set[bytes | str] = set()
        """Contents and tool-call ids of all answers."""
        self._prompts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, record: RecordedCall, match: PromptMatch) -> None:
        """Add a recorded call; later prompts can continue it.

        :param match: that of its prompt.
        """
        node = _CallNode(record, self._nodes.get(record.parent))
        self._nodes[record.id] = node
        self._after[match.place.key].append(node)
        self._after[match.place.words].append(node)
        self._said.add(_digest(record.answer))
        self._said.update(part.id for part in record.answer.parts if isinstance(part, ToolCall))

    def match(self, call: GatewayCall, digests: Sequence[bytes] | None = None) -> PromptMatch:
        """Return the known beginning of a call's prompt.

        :param digests: `message_digests` of the call, if they are known.
        """
        digests = message_digests(call.messages) if digests is None else digests
        walk = self._walk(_begin(call.tools, call.template), call.messages, digests)
        if walk.node is None and walk.unknown < 0:
            return PromptMatch(PromptOrigin.OPENING, walk.place)
        origin = PromptOrigin.APPENDED if walk.unknown < 0 else self._why(call, digests, walk)
        if walk.node is None:
            return PromptMatch(origin, walk.place)
        return PromptMatch(origin, walk.place, walk.node.id, walk.count, _ids(walk.node))

    def draw(self, prompt: bytes) -> str:
        """Return a name for a call with this prompt: its digest, and the number of earlier calls with it."""
        digest = blake2b(prompt, digest_size=_SIZE).digest()
        self._prompts[digest] += 1
        return f"{digest.hex()}/{self._prompts[digest] - 1}"

    def chain(self, id: str) -> list[str]:
        """Return the ids of the calls that a recorded call continues, the first one first, and its own; empty: none."""
        node = self._nodes.get(id)
        return [] if node is None else [each.id for each in _chain(node)]

    def _walk(
        self,
        place: _PromptPlace,
        messages: Iterable[Message],
        digests: Iterable[bytes],
        *,
        by_words: bool = False,
    ) -> _PromptWalk:
        walk = _PromptWalk(place)
        for index, (message, digest) in enumerate(zip(messages, digests, strict=True)):
            if message.role != "assistant":
                walk.place = walk.place.then(digest)
                continue
            answers = self._after.get(walk.place.words if by_words else walk.place.key, ())
            node = _recognised(message, answers)
            if node is None:
                walk.unknown = index if walk.unknown < 0 else walk.unknown
                walk.place = walk.place.then(digest)
            else:
                walk.node, walk.count, walk.unknown = node, index + 1, -1
                walk.place = walk.place.known(node.id)
        return walk

    def _why(self, call: GatewayCall, digests: Sequence[bytes], walk: _PromptWalk) -> PromptOrigin:
        """Return the reason for rendering an answer."""
        again = self._walk(_begin(call.tools, call.template), call.messages, digests, by_words=True)
        if again.count > walk.count:
            return PromptOrigin.TOOLS
        message = call.messages[walk.unknown]
        known = {part.id for part in message.parts if isinstance(part, ToolCall)} | {_digest(message)}
        return PromptOrigin.FOREIGN if self._said.isdisjoint(known) else PromptOrigin.REWRITTEN


def message_digests(messages: Iterable[Message]) -> list[bytes]:
    """Return a digest of the role and the content of each message."""
    return [
        _hash(b"", _ENCODER.encode((message.role, [_content(part) for part in message.parts])))
        for message in messages
    ]


def _chain(node: _CallNode) -> list[_CallNode]:
    """Return the calls from the first one to this one."""
    found: list[_CallNode] = []
    step: _CallNode | None = node
    while step is not None:
        found.append(step)
        step = step.parent
    return found[::-1]


def _begin(tools: Sequence[ToolSpec], template: Mapping[str, Any]) -> _PromptPlace:
    return _PromptPlace(_hash(b"", _ENCODER.encode((tools, template))), bytes(_SIZE))


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


def _recognised(message: Message, answers: Sequence[_CallNode]) -> _CallNode | None:
    """Return the answer that a message repeats; of equal ones the newest."""
    if not answers:
        return None
    if message.mark:
        marked = next((node for node in answers if node.id == message.mark), None)
        if marked is not None:
            return marked
    text, calls = _text(message), _calls(message)
    called, ids = [_called(call) for call in calls], [call.id for call in calls]
    exact = _text(message, strip=False)
    same: _CallNode | None = None
    for node in reversed(answers):
        own = _calls(node.answer)
        if [_called(call) for call in own] != called:
            continue
        # Many clients leave out the text beside calls.
        if text != _text(node.answer) and (text or not calls):
            continue
        if [call.id for call in own] == ids and (calls or exact == _text(node.answer, strip=False)):
            return node
        same = same or node
    return same


def _ids(node: _CallNode) -> "array[int]":
    ids = array("i")
    for each in _chain(node):
        ids.extend(each.ids)
    return ids


def full_tokens(calls: Iterable[RecordedCall]) -> Iterator[tuple[RecordedCall, Tokens]]:
    """Yield each recorded call that has tokens, with its whole prompt. See docs/gateway.md.

    :param calls: calls of one episode; parents before the calls that continue them.
    :raises ValueError: if a parent is missing.
    """
    known: dict[str, Tokens] = {}
    for call in calls:
        tokens = call.tokens
        if tokens is None:
            continue
        if call.parent:
            if call.parent not in known:
                raise ValueError(f"call {call.id!r} continues {call.parent!r}, which is missing")
            before = known[call.parent]
            tokens = replace(tokens, prompt=(*before.prompt, *before.sampled, *tokens.prompt))
        known[call.id] = tokens
        yield call, tokens


def trained_tokens(calls: Iterable[RecordedCall]) -> dict[str, list[tuple[str, Tokens]]]:
    """Return id and tokens of each delivered call of a trained agent, by agent. See docs/gateway.md."""
    found: dict[str, list[tuple[str, Tokens]]] = {}
    for call, tokens in full_tokens(calls):
        if call.trained and call.delivered:
            found.setdefault(call.agent, []).append((call.id, tokens))
    return found


def token_tree(calls: Iterable[RecordedCall], *, episode: str = "") -> TokenTree:
    """Return the token tree of an episode's calls; agents and sets of tools are voices of their own. See docs/gateway.md.

    Calls that no client received are left out. If one was continued all the same, its tokens are context.
    """
    tree = TokenTree()
    tools: dict[str, str] = {}
    for call, tokens in full_tokens(calls):
        tools[call.id] = tools[call.parent] if call.parent else _digest_of_tools(call.tools or ())
        if call.delivered:
            voice = Voice(agent=call.agent, tools=tools[call.id], episode=episode)
            tree.add(TokenCall(id=call.id, voice=voice, tokens=tokens, parent=call.parent))
    return tree


def _digest_of_tools(tools: Sequence[ToolSpec]) -> str:
    return blake2b(_ENCODER.encode(tools), digest_size=6).hexdigest() if tools else ""
