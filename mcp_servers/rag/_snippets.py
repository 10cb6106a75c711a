"""Snippets: the part of a text that matches a query best, in whole sentences."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from mcp_servers.rag._terms import cut

MAX_SNIPPET = 500
"""Maximum length of a snippet in characters; it ends with a sentence if possible."""

_MAX_CACHED_CHARS = 20_000
"""Longest text whose sentences are cached."""

_SENTENCE_END = re.compile(r"""[.!?。！？\n](?:(?<!\n)["'”’»)\]]*\s+(?=\S)|(?<=\n)\s*\n)""")

Span = tuple[int, int]


class Snippet(NamedTuple):
    """A part of a text."""

    start: int
    """Start in the text, in characters."""
    end: int
    """End in the text."""
    highlights: list[Span]
    """Positions of query words in it."""


class _SplitText(NamedTuple):
    """Terms and sentence windows of a text."""

    terms: tuple[str, ...]
    """Terms in order."""
    ends: tuple[int, ...]
    """End of each term."""
    places: dict[str, list[Span]]
    """Cached positions of terms."""
    windows: list[Span]
    """Candidate snippets: runs of sentences, none within another."""


def snippet_of(text: str, terms: Iterable[str]) -> Snippet:
    """Return the run of sentences with the most of these terms; the first one of ties."""
    split = _cached_split(text) if len(text) <= _MAX_CACHED_CHARS else _split_text(text)
    windows = split.windows
    if not windows:
        return Snippet(0, 0, [])
    known = [spans for term in terms if (spans := _places(split, term))]
    start, end = windows[0] if len(windows) == 1 else _best(windows, known)
    if end - start > MAX_SNIPPET:
        start, end = _cut(text, start, end, [first for spans in known for first, _ in spans])
    return Snippet(
        start, end, sorted([span for spans in known for span in spans if start <= span[0] and span[1] <= end])
    )


def _split_text(text: str) -> _SplitText:
    return _SplitText(*cut(text), {}, _windows(_sentences(text)))


_cached_split = lru_cache(maxsize=2048)(_split_text)


def _places(split: _SplitText, term: str) -> list[Span]:
    """Return the positions of a term."""
    known = split.places.get(term)
    if known is None:
        known, place = split.places.setdefault(term, []), -1
        for _ in range(split.terms.count(term)):
            place = split.terms.index(term, place + 1)
            known.append((split.ends[place - 1] + 1 if place else 0, split.ends[place]))
    return known


def _sentences(text: str) -> list[Span]:
    shown = text.strip()
    if len(shown) <= MAX_SNIPPET:
        # The whole text fits.
        first = len(text) - len(text.lstrip())
        return [(first, first + len(shown))] if shown else []
    sentences: list[Span] = []
    begin = 0
    for gap_start, gap_end in (
        *(match.span() for match in _SENTENCE_END.finditer(text)),
        (len(text), len(text)),
    ):
        # Closing quotes belong to the sentence before them.
        end = gap_start + len(text[gap_start:gap_end].rstrip())
        piece = text[begin:end]
        if stripped := piece.strip():
            first = begin + piece.index(stripped)
            sentences.append((first, first + len(stripped)))
        begin = gap_end
    return sentences


def _windows(sentences: list[Span]) -> list[Span]:
    """Return maximal runs of sentences within the length limit; a longer sentence forms its own window."""
    windows: list[Span] = []
    last = 0
    for first, (start, end) in enumerate(sentences):
        last = max(last, first)
        while last + 1 < len(sentences) and sentences[last + 1][1] - start <= MAX_SNIPPET:
            last += 1
        window = (start, max(sentences[last][1], end))
        if not windows or window[1] > windows[-1][1]:
            windows.append(window)
    return windows


def _best(windows: list[Span], known: list[list[Span]]) -> Span:
    """Return the window with the most distinct terms, then the most occurrences, then the first."""
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
    """Cut a long sentence around its first match, between words if possible."""
    place = min((place for place in places if start <= place < end), default=start)
    left = max(start, min(place - MAX_SNIPPET // 4, end - MAX_SNIPPET))
    right = min(left + MAX_SNIPPET, end)
    if left > start and (space := text.find(" ", left, place)) >= 0:
        left = space + 1
    if right < end and (space := text.rfind(" ", place, right)) > left:
        right = space
    return left, right
