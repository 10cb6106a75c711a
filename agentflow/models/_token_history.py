"""Tokens of earlier conversations."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from agentflow.models._protocol import Message
from agentflow.trajectory import Tokens

_ENCODER = msgspec.json.Encoder()
_MOST = 16_000_000


class TokenHistory:
    """Tokens that a model read and sampled, by the mark of the call and by the text; least recently used ones are dropped.

    Equal texts can be sampled as different tokens, and many conversations have the same beginning, so the text does not
    always identify a call. The mark does.
    """

    def __init__(self, most: int = _MOST) -> None:
        """Start empty.

        :param most: maximum number of tokens to keep, four bytes each.
        """
        self._most = most
        self._size = 0
        self._known: OrderedDict[str, tuple[array[int], bytes]] = OrderedDict()
        self._said: dict[bytes, str] = {}

    def keep(self, messages: Sequence[Message], tokens: Tokens) -> None:
        """Store the tokens of these messages, the last of which is the answer."""
        *_, (_, _, words) = _answers(messages)
        mark = tokens.mark
        self._forget(mark)
        ids = array("i", tokens.prompt)
        ids.extend(tokens.sampled)
        self._known[mark] = ids, words
        self._said[words] = mark
        self._size += len(ids)
        while self._size > self._most and len(self._known) > 1:
            self._forget(next(iter(self._known)))

    def longest(self, messages: Sequence[Message]) -> tuple[int, list[int]]:
        """Return the number of messages with known tokens, and these tokens."""
        for count, mark, words in reversed(list(_answers(messages))):
            found = mark if mark in self._known else self._said.get(words)
            if found is not None:
                self._known.move_to_end(found)
                return count, self._known[found][0].tolist()
        return 0, []

    def _forget(self, mark: str) -> None:
        if mark in self._known:
            ids, words = self._known.pop(mark)
            self._size -= len(ids)
            if self._said.get(words) == mark:
                del self._said[words]


def _answers(messages: Sequence[Message]) -> Iterator[tuple[int, str, bytes]]:
    """Yield after each answer: number of messages, mark of the answer, hash of all text so far."""
    said = blake2b(digest_size=16)
    for count, message in enumerate(messages, 1):
        said.update(_ENCODER.encode((message.role, message.parts)))
        if message.role == "assistant":
            yield count, message.mark, said.copy().digest()
