"""Snippets: the part of a text that fits a query best, in whole sentences."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from mcp_servers.rag._terms import cut

__all__ = ["SNIPPET", "Snippet", "snippet_of"]

SNIPPET = 500
"""Characters that a snippet has at most; it is shorter where sentences end before."""

_CACHED = 20_000
"""Longer texts are not remembered."""

_SENTENCE_END = re.compile(r"""[.!?。！？\n](?:(?<!\n)["'”’»)\]]*\s+(?=\S)|(?<=\n)\s*\n)""")

Span = tuple[int, int]


class Snippet(NamedTuple):
    """A part of a text."""

    start: int
    """Where it starts, in characters."""
    end: int
    """Where it ends."""
    highlights: list[Span]
    """Where words of the query stand in it."""


class _SplitText(NamedTuple):
    """A text taken apart."""

    terms: tuple[str, ...]
    """Its terms in order."""
    ends: tuple[int, ...]
    """Where each ends."""
    places: dict[str, list[Span]]
    """Where those stand that were looked for."""
    windows: list[Span]
    """Runs of sentences that a snippet may be; none lies in another one."""


def snippet_of(text: str, terms: Iterable[str]) -> Snippet:
    """The run of sentences with the most of these terms; the first of equals."""
    anatomy = _cached_split(text) if len(text) <= _CACHED else _split_text(text)
    windows = anatomy.windows
    if not windows:
        return Snippet(0, 0, [])
    known = [spans for term in terms if (spans := _places(anatomy, term))]
    start, end = windows[0] if len(windows) == 1 else _best(windows, known)
    if end - start > SNIPPET:
        start, end = _cut(text, start, end, [first for spans in known for first, _ in spans])
    return Snippet(
        start, end, sorted([span for spans in known for span in spans if start <= span[0] and span[1] <= end])
    )


def _split_text(text: str) -> _SplitText:
    return _SplitText(*cut(text), {}, _windows(_sentences(text)))


_cached_split = lru_cache(maxsize=2048)(_split_text)


def _places(anatomy: _SplitText, term: str) -> list[Span]:
    """Where a term stands."""
    known = anatomy.places.get(term)
    if known is None:
        known, place = anatomy.places.setdefault(term, []), -1
        for _ in range(anatomy.terms.count(term)):
            place = anatomy.terms.index(term, place + 1)
            known.append((anatomy.ends[place - 1] + 1 if place else 0, anatomy.ends[place]))
    return known


def _sentences(text: str) -> list[Span]:
    shown = text.strip()
    if len(shown) <= SNIPPET:
        # All of it fits, so it need not be cut.
        first = len(text) - len(text.lstrip())
        return [(first, first + len(shown))] if shown else []
    sentences: list[Span] = []
    begin = 0
    for gap_start, gap_end in (
        *(match.span() for match in _SENTENCE_END.finditer(text)),
        (len(text), len(text)),
    ):
        # Closing quotes belong to the sentence that they close.
        end = gap_start + len(text[gap_start:gap_end].rstrip())
        piece = text[begin:end]
        if stripped := piece.strip():
            first = begin + piece.index(stripped)
            sentences.append((first, first + len(stripped)))
        begin = gap_end
    return sentences


def _windows(sentences: list[Span]) -> list[Span]:
    """As many sentences together as a snippet may have; a longer one by itself."""
    windows: list[Span] = []
    last = 0
    for first, (start, end) in enumerate(sentences):
        last = max(last, first)
        while last + 1 < len(sentences) and sentences[last + 1][1] - start <= SNIPPET:
            last += 1
        window = (start, max(sentences[last][1], end))
        if not windows or window[1] > windows[-1][1]:
            windows.append(window)
    return windows


def _best(windows: list[Span], known: list[list[Span]]) -> Span:
    """The first window with the most different terms; of those the one with the most of them."""
    distinct, total = [0] * len(windows), [0] * len(windows)
    ends = [end for _, end in windows]
    for spans in known:
        seen: set[int] = set()
        for start, end in spans:
            place = bisect_left(ends, end)
            while place < len(windows) and windows[place][0] <= start:
                total[place] += 1
                seen.add(place)
                place += 1
        for place in seen:
            distinct[place] += 1
    return windows[max(range(len(windows)), key=lambda place: (distinct[place], total[place], -place))]


def _cut(text: str, start: int, end: int, places: list[int]) -> Span:
    """A part of a long sentence around the first match, which begins and ends between words if there are any."""
    place = min((place for place in places if start <= place < end), default=start)
    left = max(start, min(place - SNIPPET // 4, end - SNIPPET))
    right = min(left + SNIPPET, end)
    if left > start and (space := text.find(" ", left, place)) >= 0:
        left = space + 1
    if right < end and (space := text.rfind(" ", place, right)) > left:
        right = space
    return left, right
