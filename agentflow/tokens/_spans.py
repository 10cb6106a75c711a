"""A radix tree over token ids: each run of ids is stored once."""

import sys
from array import array
from collections.abc import Iterable, Sequence

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
    pieces: list[bytes] = []
    step: TokenSpan | None = end
    while step is not None and step is not above:
        pieces.append(step.ids)
        step = step.parent
    return b"".join(reversed(pieces))


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
        step: TokenSpan | None = end
        while step is not None and step not in needed:
            needed.add(step)
            step = step.parent
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
