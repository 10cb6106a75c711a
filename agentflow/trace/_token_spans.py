"""A radix tree over token ids, in which each run of ids is stored once, and the calls stored in it.

The call that each of them continues is a function of the set of calls.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from agentflow.trace._node import Tokens
from agentflow.trace._token_calls import TokenCall, Voice

WIDTH = 4
"""Bytes of an id. Ids are compared as bytes, many at once."""


class TokenSpan:
    """Consecutive tokens shared by every call that contains the first of them.

    A span that is split keeps its end, so calls may hold a reference to it.
    """

    __slots__ = ("children", "ids", "parent", "start")

    def __init__(self, parent: "TokenSpan | None", start: int, ids: bytes) -> None:
        self.parent = parent
        self.start = start
        """Number of tokens before it."""
        self.ids = ids
        self.children: dict[bytes, TokenSpan] = {}
        """Following spans by their first token."""

    @property
    def stop(self) -> int:
        """Number of tokens on the path from the root to its end."""
        return self.start + len(self.ids) // WIDTH

    def upwards(self, above: "TokenSpan | None" = None) -> "Iterator[TokenSpan]":
        """Iterate over this span and those before it, to the root or to the one after `above`."""
        step: TokenSpan | None = self
        while step is not None and step is not above:
            yield step
            step = step.parent


def packed(ids: Iterable[int]) -> bytes:
    """Return ids as bytes.

    :raises ValueError: if one of them is not an unsigned 32-bit integer.
    """
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a token id: {error}") from None


def ids_of(data: bytes) -> tuple[int, ...]:
    """Return bytes as ids."""
    return tuple(array("I", data))


def shared_size(one: bytes, other: bytes, start: int = 0) -> int:
    """Return the length in bytes of the common prefix, in whole ids, of `one` and `other[start:]`."""
    if other.startswith(one, start):
        return len(one)
    low, high = 0, min(len(one), len(other) - start) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        piece = slice(low * WIDTH, middle * WIDTH)
        if other.startswith(one[piece], start + low * WIDTH):
            low = middle
        else:
            high = middle - 1
    return low * WIDTH


def grow(at: TokenSpan, ids: bytes) -> TokenSpan:
    """Add ids after `at`, sharing what is already there, and return the span that ends with the last of them."""
    place = 0
    while place < len(ids):
        child = at.children.get(ids[place : place + WIDTH])
        if child is None:
            child = TokenSpan(at, at.stop, ids[place:])
            at.children[child.ids[:WIDTH]] = child
            return child
        size = shared_size(child.ids, ids, place)
        at = child if size == len(child.ids) else _split(child, size)
        place += size
    return at


def path_ids(end: TokenSpan, above: TokenSpan | None = None) -> bytes:
    """Return all ids from the root, or from the end of `above`, to the end of a span.

    See docs/tokens.md.
    """
    return b"".join([span.ids for span in end.upwards(above)][::-1])


def walk(ends: Sequence[TokenSpan]) -> tuple[list[int], list[int]]:
    """Sort paths of one tree by their tokens, depth first.

    :param ends: the last span of each path; all in one tree.
    :return: the indices of the paths in order, and the number of tokens each shares with the path before it.

    Example::

        tree = TokenTree()
        ends = [tree.insert(ids) for ids in ([1, 2, 4], [1, 2, 3], [1])]
        assert walk(ends) == ([2, 1, 0], [0, 1, 2])
    """
    paths: dict[TokenSpan, list[int]] = {}
    needed: set[TokenSpan] = set()
    for number, end in enumerate(ends):
        paths.setdefault(end, []).append(number)
        for span in end.upwards():
            if span in needed:
                break
            needed.add(span)
    roots = [span for span in needed if span.parent is None]
    order: list[int] = []
    common: list[int] = []
    shared, todo = 0, roots
    while todo:
        span = todo.pop()
        shared = min(shared, span.start)
        for number in paths.get(span, ()):
            order.append(number)
            common.append(shared)
            shared = span.stop
        below = [first for first, child in span.children.items() if child in needed]
        todo += [span.children[first] for first in sorted(below, key=_number, reverse=True)]
    return order, common


def _number(id: bytes) -> int:
    return int.from_bytes(id, sys.byteorder)


def _split(span: TokenSpan, size: int) -> TokenSpan:
    """Split off the first ids as a span of their own; `span` keeps the rest."""
    parent = span.parent
    assert parent is not None, "the root has no ids to split"
    upper = TokenSpan(parent, span.start, span.ids[:size])
    parent.children[upper.ids[:WIDTH]] = upper
    span.parent = upper
    span.start = upper.stop
    span.ids = span.ids[size:]
    upper.children[span.ids[:WIDTH]] = span
    return upper


class StoredCall:
    """A call as the tree stores it: the spans that end its prompt and its answer, and the log-probabilities."""

    __slots__ = ("asked", "end", "finish", "id", "logprobs", "parent", "version", "versions", "voice")

    def __init__(self, call: TokenCall, asked: TokenSpan, end: TokenSpan) -> None:
        self.id = call.id
        self.voice: Voice = call.voice
        self.parent = call.parent
        self.asked = asked
        """Last span of the prompt."""
        self.end = end
        """Last span of the answer."""
        self.logprobs = array("d", call.tokens.logprobs)
        self.version = call.tokens.version
        self.versions = call.tokens.versions
        self.finish = call.tokens.finish

    @property
    def has_answer(self) -> bool:
        """True if at least one token was sampled."""
        return self.end is not self.asked

    def tokens(self) -> Tokens:
        """Return the prompt and the sampled tokens."""
        return Tokens(
            prompt=ids_of(path_ids(self.asked)),
            sampled=ids_of(path_ids(self.end, self.asked)),
            logprobs=tuple(self.logprobs),
            version=self.version,
            versions=self.versions,
            finish=self.finish,
        )


class CallLink(Struct, frozen=True):
    """A call and the call it continues."""

    call: StoredCall
    """The call."""
    parent: StoredCall | None = None
    """The call it continues."""
    rivals: tuple[StoredCall, ...] = ()
    """Calls it may continue, if that is ambiguous."""


def links_of(root: TokenSpan, calls: Collection[StoredCall]) -> list[CallLink]:
    """Return the link of each call; parents before children, siblings by their tokens."""
    asked: dict[TokenSpan, list[StoredCall]] = defaultdict(list)
    ended: dict[TokenSpan, list[StoredCall]] = defaultdict(list)
    for call in calls:
        asked[call.asked].append(call)
        if call.has_answer:
            ended[call.end].append(call)
    above: dict[Voice, list[list[StoredCall]]] = defaultdict(list)
    links: list[CallLink] = []
    for span, leaving in _enter_and_leave(root):
        for voice, group in _by_voice(ended.get(span, ())).items():
            if leaving:
                above[voice].pop()
            else:
                above[voice].append(group)
        if not leaving and span in asked:
            links += [_link(call, above[call.voice]) for call in sorted(asked[span], key=_order)]
    return links


def chains_of(links: list[CallLink]) -> list[list[StoredCall]]:
    """Return chains of calls that continue each other; of several continuations, the first stays in its parent's chain."""
    heirs: dict[str, StoredCall] = {}
    begins: list[StoredCall] = []
    for link in links:
        parent = link.parent
        if parent is None or parent.id in heirs or not link.call.has_answer:
            begins.append(link.call)
        else:
            heirs[parent.id] = link.call
    chains: list[list[StoredCall]] = [[call] for call in begins if call.has_answer]
    for chain in chains:
        while (heir := heirs.get(chain[-1].id)) is not None:
            chain.append(heir)
    return chains


def _enter_and_leave(root: TokenSpan) -> Iterator[tuple[TokenSpan, bool]]:
    """Yield every span twice: before and after the spans below it."""
    todo = [(root, False)]
    while todo:
        span, leaving = todo.pop()
        yield span, leaving
        if not leaving:
            todo.append((span, True))
            todo += [(span.children[first], False) for first in sorted(span.children, reverse=True)]


def _by_voice(calls: Collection[StoredCall]) -> dict[Voice, list[StoredCall]]:
    groups: dict[Voice, list[StoredCall]] = defaultdict(list)
    for call in calls:
        groups[call.voice].append(call)
    return groups


def _link(call: StoredCall, above: list[list[StoredCall]]) -> CallLink:
    if not above:
        return CallLink(call)
    nearest = above[-1]
    if len(nearest) == 1:
        return CallLink(call, nearest[0])
    named = next((each for each in nearest if each.id == call.parent), None)
    return CallLink(call, named, () if named is not None else tuple(sorted(nearest, key=_order)))


def _order(call: StoredCall) -> tuple[int, tuple[float, ...], str, str]:
    """Sort key among calls that end with the same span; it does not depend on when they were added."""
    return call.asked.stop, tuple(call.logprobs), call.version, call.id
