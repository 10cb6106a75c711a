"""Token ids, each run of them kept once."""

from array import array
from collections.abc import Iterable

__all__ = ["WIDTH", "Span", "grow", "ids_of", "packed", "path_ids", "shared_size"]

WIDTH = 4
"""Bytes of an id: bytes are compared without looking at each of them."""


class Span:
    """Consecutive tokens that all calls which have the first of them share."""

    __slots__ = ("children", "ids", "parent", "start")

    def __init__(self, parent: "Span | None", start: int, ids: bytes) -> None:
        self.parent = parent
        self.start = start
        """How many tokens stand before it."""
        self.ids = ids
        self.children: dict[bytes, Span] = {}
        """What follows, by its first token."""

    @property
    def stop(self) -> int:
        """How many tokens a path to its end has. A span that is split keeps its end, so calls may hold on to it."""
        return self.start + len(self.ids) // WIDTH


def packed(ids: Iterable[int]) -> bytes:
    """Ids as bytes.

    :raises ValueError: if one of them is none.
    """
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a token id: {error}") from None


def ids_of(data: bytes) -> tuple[int, ...]:
    """Bytes as ids."""
    return tuple(array("I", data))


def shared_size(one: bytes, other: bytes, start: int = 0) -> int:
    """How many bytes of whole ids `one` shares with what `other` has from `start` on."""
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


def grow(at: Span, ids: bytes) -> Span:
    """The span that ends where those ids end after `at`; what of them is not there yet is added."""
    place = 0
    while place < len(ids):
        child = at.children.get(ids[place : place + WIDTH])
        if child is None:
            child = Span(at, at.stop, ids[place:])
            at.children[child.ids[:WIDTH]] = child
            return child
        size = shared_size(child.ids, ids, place)
        at = child if size == len(child.ids) else _split(child, size)
        place += size
    return at


def path_ids(end: Span, above: Span | None = None) -> bytes:
    """All ids from the root to the end of that span, or from the end of `above` on."""
    pieces: list[bytes] = []
    step: Span | None = end
    while step is not None and step is not above:
        pieces.append(step.ids)
        step = step.parent
    return b"".join(reversed(pieces))


def _split(span: Span, size: int) -> Span:
    """Its first ids as a span of their own; the rest stays."""
    parent = span.parent
    assert parent is not None, "the root has no ids to split"
    upper = Span(parent, span.start, span.ids[:size])
    parent.children[upper.ids[:WIDTH]] = upper
    span.parent = upper
    span.start = upper.stop
    span.ids = span.ids[size:]
    upper.children[span.ids[:WIDTH]] = span
    return upper
