"""Long texts shown as windows around the passages that matter, each with its offsets."""

import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

from agentflow.text._normalise import ANY_UNSPACED, add_plurals, is_content_word, split_words, word_set

MIN_EXCERPT_CHARS: Final = 200
"""Smallest limit of an excerpt; a smaller one counts as this."""

_UNIT: Final = 320
"""Maximum characters of a passage that is shown or left out as a whole."""
_MARK: Final = 56
"""Characters to reserve for the offsets of a window and the mark before it."""
_CONTEXT_CHARS: Final = 200
"""Maximum characters of the line above a passage; the header of a table is never cut."""
_MAX_ABOVE: Final = 8
"""Maximum number of lines above a passage that are shown with it."""
_MAX_OUTLINE: Final = 200
_MAX_SUBSTRINGS: Final = 100
"""Number of terms up to which a text without spaces is searched for each of them."""
_MATCH: Final = 0.01
"""Score from which a passage contains something that was looked for."""
_NAME_WEIGHT: Final = 0.4
_NEIGHBOUR: Final = 0.25
"""Share of a passage's score that its neighbours get, so that a passage is shown with what surrounds it."""
_SENTENCE_ENDS: Final = (". ", "! ", "? ", "。", "！", "？", ".\t")
_JSON_ENDS: Final = ("},", "],", '",')
_DELIMITERS: Final = ("|", "\t", ",")
_TABLE_ROWS: Final = 3
_ITEM: Final = re.compile(r"\d+[.)] |\[\d+\] ?|[-*•] ")
_HEADING: Final = re.compile(r"(#{1,6}) ")
_LABEL: Final = re.compile(r"[^:]{1,80}:(?= )")
_SEPARATOR: Final = re.compile(r"[\s|:+=-]+")
_STRUCTURED: Final = re.compile(r"^(?: +\S|#{1,6} |\d+[.)] |\[\d+\]|[-*•] )", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
_HEADER: Final = re.compile(
    r"(?:… [\d,]{1,15} characters …\n)?\[([\d,]{1,15})–([\d,]{1,15})(?: of [\d,]{1,15})?\]\n"
)
"""Lines of `show_windows` before a window."""
_NAME: Final = re.compile(r"\b[^\W\d_a-z][\w'’-]{2,}")


class TextWindow(NamedTuple):
    """Part of a text that is shown."""

    start: int
    """Offset of its first character."""
    end: int
    """Offset after its last character."""


def search_terms(*texts: str) -> frozenset[str]:
    """Return the words of some texts that passages are ranked by: content words and numbers, in any number.

    >>> {"1841", "keeper", "keepers"} <= search_terms("The keepers of 1841")
    True
    """
    all_words = chain.from_iterable(map(word_set, texts))
    return add_plurals(frozenset(word for word in all_words if is_content_word(word) or _is_number(word)))


@lru_cache(maxsize=256)
def name_terms(text: str) -> frozenset[str]:
    """Return the capitalised words of a text, in the form of `search_terms`: mostly parts of names.

    >>> sorted(name_terms("The keeper, Ada Holm, sailed."))
    ['ada', 'holm']
    """
    return frozenset(filter(is_content_word, split_words(" ".join(_NAME.findall(text)))))


def excerpt(
    text: str,
    limit: int,
    terms: frozenset[str] = frozenset(),
    names: frozenset[str] = frozenset(),
    keep: Iterable[tuple[int, int]] = (),
) -> str:
    r"""Return a text of at most `limit` characters: the whole text, or windows of it.

    Only `keep` can make it longer. See `find_windows`.

    >>> page = "Intro.\n" + "Nothing here.\n" * 90 + "Ada Holm kept the light.\n" + "Nothing here.\n" * 90
    >>> print(excerpt(page, 250, search_terms("Ada Holm")))
    [0–34 of 2,552]
    Intro.
    Nothing here.
    Nothing here.
    … 1,233 characters …
    [1,267–1,305]
    Ada Holm kept the light.
    Nothing here.
    … 1,247 characters …
    """
    if len(text) <= limit:
        return text
    return _excerpt(text, limit, terms, names, tuple(keep))


@lru_cache(maxsize=128)
def _excerpt(
    text: str, limit: int, terms: frozenset[str], names: frozenset[str], keep: tuple[tuple[int, int], ...]
) -> str:
    """Cached: every step that grows from a path shows the texts of that path again."""
    return show_windows(text, find_windows(text, limit, terms, names, keep))


def show_windows(text: str, windows: Sequence[TextWindow]) -> str:
    """Return windows with their offsets, and between them the number of characters left out.

    >>> print(show_windows("abcdef", [TextWindow(0, 2), TextWindow(4, 6)]))
    [0–2 of 6]
    ab
    … 2 characters …
    [4–6]
    ef
    """
    lines: list[str] = []
    shown = 0
    for number, window in enumerate(windows):
        if window.start > shown:
            lines.append(f"… {window.start - shown:,} characters …")
        of = f" of {len(text):,}" if number == 0 else ""
        lines += [f"[{window.start:,}–{window.end:,}{of}]", text[window.start : window.end]]
        shown = window.end
    if shown < len(text):
        lines.append(f"… {len(text) - shown:,} characters …")
    return "\n".join(lines)


def placed_windows(text: str, shown: str) -> Iterator[tuple[TextWindow, int]]:
    """Yield the windows of a text that `show_windows` has shown, each with its place in what was shown.

    >>> list(placed_windows("abcdef", show_windows("abcdef", [TextWindow(0, 2), TextWindow(4, 6)])))
    [(TextWindow(start=0, end=2), 11), (TextWindow(start=4, end=6), 37)]
    """
    position = 0
    while header := _HEADER.match(shown, position):
        start, end = (int(number.replace(",", "")) for number in header.groups())
        position = header.end()
        if not start < end <= len(text) or not shown.startswith(text[start:end], position):
            return
        yield TextWindow(start, end), position
        position += end - start + 1


def find_windows(
    text: str,
    limit: int,
    terms: frozenset[str] = frozenset(),
    names: frozenset[str] = frozenset(),
    keep: Iterable[tuple[int, int]] = (),
) -> tuple[TextWindow, ...]:
    """Return the windows of a text that are worth showing, in order; shown with their marks they fit into the limit.

    Passages end at lines, rows, sentences, or members of a JSON text. They are ranked by the terms and names that they
    contain, rare ones first; without any, the beginning and the end are shown. A passage comes with the header of its
    table and the headings, list items or less indented lines that it belongs to. Lines that others belong to are shown
    as an outline if there is room. Equal arguments give equal windows.

    >>> text = "A. " * 200 + "Ada Holm sailed. " + "A. " * 200
    >>> [text[one.start : one.end].count("Ada Holm") for one in find_windows(text, 300, search_terms("Holm"))]
    [0, 1]

    :param terms: words to look for, from `search_terms`.
    :param names: further words that count less, from `name_terms`.
    :param keep: spans that must be shown whole; only they may exceed the limit.
    """
    limit = max(limit, MIN_EXCERPT_CHARS)
    size = min(_UNIT, max(40, limit // 8))
    passages = _Passages(text, size)
    picked = _PickedPassages(passages, limit)
    picked.keep([(max(0, start), min(len(text), end)) for start, end in keep if start < end])
    scores = passages.scores(terms, names)
    best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    picked.pick(best[0])
    picked.pick(0)
    picked.outline(scores)
    matches = scores[best[0]] >= _MATCH
    for index in best:
        # What matches nothing fills at most half of the limit: the rest of it serves other texts.
        if picked.full or (matches and scores[index] < _MATCH and picked.room < limit // 2):
            break
        picked.pick(index)
    return picked.windows()


def _terms_in(text: str, wanted: frozenset[str], unspaced: Sequence[str]) -> frozenset[str]:
    """Return the wanted terms that a text contains; those of scripts without spaces may be inside of a run."""
    if text.isascii():
        return wanted.intersection(split_words(text))
    plain = text if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text)
    plain = plain.casefold()
    if len(unspaced) > _MAX_SUBSTRINGS:
        return wanted.intersection(split_words(plain))
    return wanted.intersection(_WORD.findall(plain)).union(term for term in unspaced if term in plain)


def _is_number(word: str) -> bool:
    return len(word) > 1 and word.isnumeric()


class _Passages:
    """Passages of a text, and the lines that they belong to."""

    def __init__(self, text: str, size: int) -> None:
        self.text = text
        self.starts = [0]
        """Offset of each passage, and the length of the text."""
        ends = _JSON_ENDS if text[:64].lstrip()[:1] in ("{", "[") else ()
        while self.starts[-1] < len(text):
            self.starts.append(_passage_end(text, self.starts[-1], size, ends))
        lines = text.split("\n")
        self._lines = [0, *accumulate(len(line) + 1 for line in lines)]
        self._parents, self._headers = _structure(lines) if _is_structured(text) else ([], [])
        long = ((number, _LABEL.match(line)) for number, line in enumerate(lines) if len(line) > size)
        self._labels = {number: label.end() for number, label in long if label}
        """Length of the label of each long line that has one, such as the name of a table before its columns."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def at(self, offset: int) -> int:
        """Return the passage at an offset."""
        return min(bisect_right(self.starts, offset), len(self)) - 1

    def scores(self, terms: frozenset[str], names: frozenset[str]) -> list[float]:
        """Return the score of each passage: the sum of the rarity of its terms, and a share of its neighbours'."""
        wanted = terms | names
        unspaced = [term for term in wanted if ANY_UNSPACED.match(term)]
        pieces = (self.text[start:end] for start, end in pairwise(self.starts)) if wanted else ()
        terms_by_passage = [_terms_in(piece, wanted, unspaced) for piece in pieces]
        count = len(self)
        spread = Counter(chain.from_iterable(terms_by_passage))
        rarity = {
            term: math.log1p((count - often + 0.5) / (often + 0.5)) * (1 if term in terms else _NAME_WEIGHT)
            for term, often in spread.items()
        }
        # Sorted, so that the sum of floats does not depend on the order of a set.
        raw = [sum(rarity[term] for term in sorted(passage_terms)) for passage_terms in terms_by_passage] or [
            0.0
        ] * count
        around = [0.0, *raw, 0.0]
        scores = [
            score + _NEIGHBOUR * (around[index] + around[index + 2]) + 1e-3 * (1 - index / count)
            for index, score in enumerate(raw)
        ]
        scores[-1] += 2e-3
        return scores

    def context(self, index: int) -> Iterator[TextWindow]:
        """Yield the lines that a passage belongs to: the header of its table, and the lines above it in the outline."""
        line = bisect_right(self._lines, self.starts[index]) - 1
        if line in self._labels and self.starts[index] > self._lines[line]:
            yield self._label(line)
        header = self._headers[line] if line < len(self._headers) else -1
        if header >= 0:
            yield self._line(header, cut=False)
            if header + 1 < line and _SEPARATOR.fullmatch(self.text, *self._lines[header + 1 : header + 3]):
                yield self._line(header + 1, cut=False)
            line = header
        above = self._parents[line] if line < len(self._parents) else -1
        for _ in range(_MAX_ABOVE):
            if above < 0:
                return
            yield self._line(above, cut=True)
            above = self._parents[above]

    def outline(self) -> list[TextWindow]:
        """Return the lines that other lines belong to, and the labels of long lines: the top levels, if there are many."""
        above = sorted({line for line in self._parents if line >= 0} - self._labels.keys())
        depths: dict[int, int] = {}
        for line in above:
            depths[line] = depths.get(self._parents[line], -1) + 1
        counts = Counter(depths.values())
        for depth, count in enumerate(accumulate(counts[depth] for depth in range(len(counts)))):
            if count > _MAX_OUTLINE:
                above = [line for line in above if depths[line] < depth]
                break
        labels = list(self._labels)[:_MAX_OUTLINE]
        return [*map(self._label, labels), *(self._line(line, cut=True) for line in above)]

    def _label(self, line: int) -> TextWindow:
        return TextWindow(self._lines[line], self._lines[line] + self._labels[line])

    def _line(self, line: int, *, cut: bool) -> TextWindow:
        start, end = self._lines[line], min(self._lines[line + 1], len(self.text))
        if cut and end - start > _CONTEXT_CHARS:
            end = _passage_end(self.text, start, _CONTEXT_CHARS, ())
        return TextWindow(start, end)


def _passage_end(text: str, start: int, size: int, ends: tuple[str, ...]) -> int:
    """Return the end of the passage that starts here: after the last line, sentence or word that fits."""
    most = start + size
    if most >= len(text):
        return len(text)
    if (position := text.rfind("\n", start, most)) >= 0:
        return position + 1
    for end in ends:
        if (position := text.rfind(end, start, most)) >= 0:
            return position + len(end)
    position = max(text.rfind(end, start, most) + len(end) for end in _SENTENCE_ENDS)
    if position > start + 2:
        return position
    position = text.rfind(" ", start, most)
    return position + 1 if position >= 0 else most


def _is_structured(text: str) -> bool:
    """Tell whether some lines may belong to others; prose need not be looked at line by line."""
    cells = "|" in text or "\t" in text or text.count(",") - text.count(", ") > _TABLE_ROWS
    return cells or _STRUCTURED.search(text) is not None


def _structure(lines: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return for each line the line that it belongs to, and the header of its table; -1 if there is none.

    A line belongs to the last heading, list item or less indented line above it.
    """
    parents = [-1] * len(lines)
    headers = [-1] * len(lines)
    open_lines: list[tuple[float, int]] = []
    columns = begin = 0
    delimiter = ""
    for number, line in enumerate(lines):
        bare = line.lstrip(" ")
        if not bare:
            continue
        # The cells of a table are compared first: its rows do not belong to each other.
        same = line.count(delimiter) if delimiter else 0
        if not same or same != columns:
            delimiter, columns = next(
                ((delimiter, count) for delimiter in _DELIMITERS if (count := line.count(delimiter))), ("", 0)
            )
            begin = number
        elif number - begin >= _TABLE_ROWS and (delimiter != "," or columns > 1):
            headers[number] = begin
        level = _level(bare, len(line) - len(bare))
        while open_lines and open_lines[-1][0] >= level:
            open_lines.pop()
        if open_lines:
            parents[number] = open_lines[-1][1]
        open_lines.append((level, number))
    return parents, headers


def _level(bare: str, indent: int) -> float:
    if bare[0] == "#" and (heading := _HEADING.match(bare)):
        return len(heading[1]) - 10
    # An item is above the plain lines that follow it at the same indentation.
    return indent if (bare[0].isdigit() or bare[0] in "[-*•") and _ITEM.match(bare) else indent + 0.5


class _PickedPassages:
    """Passages that were picked so far, and the room that they take."""

    def __init__(self, passages: _Passages, limit: int) -> None:
        self._passages = passages
        # The mark after the last window also takes room.
        self.room = limit - _MARK // 2
        self._picked: set[int] = set()
        self._spans: dict[TextWindow, None] = {}

    @property
    def full(self) -> bool:
        return self.room < _MARK

    def keep(self, spans: Sequence[tuple[int, int]]) -> None:
        """Show these spans, with the passages around them if all fit."""
        around = {
            index
            for start, end in spans
            for index in range(self._passages.at(start), self._passages.at(end - 1) + 1)
        }
        if sum(self._cost(index) for index in around) <= self.room:
            for index in sorted(around):
                self.pick(index)
        for start, end in spans:
            if any(
                index not in self._picked
                for index in range(self._passages.at(start), self._passages.at(end - 1) + 1)
            ):
                self._spans[TextWindow(start, end)] = None
                self.room -= end - start + _MARK

    def pick(self, index: int) -> None:
        """Show a passage with the lines that it belongs to, if they fit."""
        if index in self._picked:
            return
        above = [line for line in self._passages.context(index) if not self._shows(line)]
        cost = self._cost(index) + sum(line.end - line.start + _MARK for line in above)
        if cost > self.room:
            if self._picked:
                return
            # Something is shown in any case.
            above, cost = [], self._cost(index)
        self.room -= cost
        self._picked.add(index)
        self._spans.update(dict.fromkeys(above))

    def outline(self, scores: Sequence[float]) -> None:
        """Show lines that others belong to, the best first, in at most half of the room that is left."""
        room = self.room // 2
        lines = [line for line in self._passages.outline() if not self._shows(line)]
        for line in sorted(lines, key=lambda line: -scores[self._passages.at(line.start)]):
            room -= line.end - line.start + _MARK
            if room < 0:
                return
            self._spans[line] = None
            self.room -= line.end - line.start + _MARK

    def windows(self) -> tuple[TextWindow, ...]:
        """Return what was picked as windows that do not touch each other, without space at their ends."""
        text, starts = self._passages.text, self._passages.starts
        passages = (TextWindow(starts[index], starts[index + 1]) for index in self._picked)
        merged: list[TextWindow] = []
        for window in sorted([*passages, *self._spans]):
            # A gap that is shorter than its mark is shown.
            if merged and window.start - merged[-1].end < _MARK // 2:
                merged[-1] = TextWindow(merged[-1].start, max(window.end, merged[-1].end))
            else:
                merged.append(window)
        trimmed = (_trimmed(text, window) for window in merged)
        return tuple(window for window in trimmed if window.start < window.end)

    def _shows(self, window: TextWindow) -> bool:
        first, last = self._passages.at(window.start), self._passages.at(window.end - 1)
        return window in self._spans or all(index in self._picked for index in range(first, last + 1))

    def _cost(self, index: int) -> int:
        start, end = self._passages.starts[index : index + 2]
        beside = (index - 1 in self._picked) + (index + 1 in self._picked)
        return end - start + (_MARK, 0, -_MARK)[beside]


def _trimmed(text: str, window: TextWindow) -> TextWindow:
    shown = text[window.start : window.end]
    start = window.start + len(shown) - len(shown.lstrip("\n"))
    return TextWindow(start, start + len(shown.strip("\n")))
