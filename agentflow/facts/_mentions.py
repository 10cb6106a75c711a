"""Mentions of names and values in texts, and the sentences that contain them."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeAlias

from agentflow.facts._dates import DateMention, find_dates
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    TextValue,
    Value,
    ValueKind,
    parse_value,
)
from agentflow.text import scale_of

Span: TypeAlias = tuple[int, int]
"""Start and end of a part of a text."""

PRONOUN: Final = re.compile(
    r"\b(?:it|its|he|him|his|she|her|hers|they|them|their|theirs|this|these|who|whose|which)\b", re.IGNORECASE
)
"""Words that stand for a name."""
_END: Final = re.compile(r"[.!?][\"'”’)\]]*(?=\s)|[。！？][”’）]*|\n[ \t\r]*\n|\n")
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Dr|Mr|Mrs|Ms|Prof|St|Sir|Capt|Lt|Gen|Rev|Hon|Jr|Sr|No|Vol|cf|e\.g|i\.e|ca?|approx|vs|Fig)\.$"
)
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)
"""Characters of scripts that do not separate words, or attach endings to them."""
_LONG_LINE: Final = 60
"""Characters from which a line without an end of sentence may be wrapped."""
_SPACES: Final = re.compile(r"\s")
_ANY_WORD: Final = re.compile(r"\w+")
_UNUSUAL: Final = re.compile("[_\u0130\u0131\u017f\u212a]")
"""Characters that are both part of words and between them, or other cases of ASCII letters."""
_MAX_GAP: Final = 3
"""Characters between two words of a name."""
_SCALE: Final = r"hundred|thousand|million|billion|trillion|dozen|mn|bn"
_WORDS: Final = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
)
_NUMBER: Final = re.compile(
    rf"(?<![\w.,])(?P<sign>[-−]?)(?P<digits>\d+(?:[,\u00a0\u202f\u2009]\d{{3}})*(?:\.\d+)?)(?!\d|[.,]\d)"
    rf"(?P<scale>\s+(?:{_SCALE})\b|[kKMB]\b|\s?(?:mn|bn)\b)?"
    rf"|(?<![\w-])(?:{_WORDS})(?:(?:[ -]|\s+and\s+)(?:{_WORDS}|{_SCALE}))*(?![\w])",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def sentence_spans(text: str) -> tuple[Span, ...]:
    """Return the sentences of a text; headings, rows of tables and items of lists are sentences too.

    >>> sentence_spans("Dr. Pell left. He died.")
    ((0, 14), (15, 23))
    """
    found: list[Span] = []
    start = 0
    for end in _END.finditer(text):
        if text.startswith("\n", end.start()):
            if not _ends_line(text, end):
                continue
        elif _ABBREVIATION.search(text, max(end.start() - 8, start), end.start() + 1):
            continue
        _add(found, text, start, end.end())
        start = end.end()
    _add(found, text, start, len(text))
    return tuple(found)


def _ends_line(text: str, end: re.Match[str]) -> bool:
    """Return whether a sentence ends with a line; a wrapped one goes on in the next."""
    if text.find("\n", end.start() + 1, end.end()) >= 0:
        return True
    line = text.rfind("\n", max(end.start() - 2 * _LONG_LINE, 0), end.start()) + 1
    following = text[end.end() : end.end() + 1]
    return not following.isalpha() or (end.start() - line < _LONG_LINE and not following.islower())


def _add(found: list[Span], text: str, start: int, end: int) -> None:
    part = text[start:end]
    left = start + len(part) - len(part.lstrip())
    right = start + len(part.rstrip())
    if left < right:
        found.append((left, right))


def span_at(spans: Sequence[Span], position: int) -> int:
    """Return the index of the last span that begins at or before a position; -1 if there is none."""
    return bisect_right(spans, position, key=lambda span: span[0]) - 1


def outside(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the spans that do not lie in one of others, which are in order and do not overlap.

    >>> outside([(0, 2), (4, 6)], [(3, 9)])
    [(0, 2)]
    """
    around = ((span, span_at(others, span[0])) for span in spans)
    return [span for span, index in around if index < 0 or span[1] > others[index][1]]


def name_spans(text: str, names: Iterable[str]) -> list[Span]:
    """Return the places where a text has one of the names as whole words, in order and without overlaps.

    A name of one word matches in the same case only.

    >>> name_spans("The grey petrel sank.", ["Grey Petrel"])
    [(4, 15)]
    """
    return merged_spans(span for name in names for span in _find_name(text, name))


def contains_name(text: str, names: Iterable[str]) -> bool:
    """Return whether a text has one of the names as whole words.

    >>> contains_name("Petrels are birds.", ["Petrel"])
    False
    """
    return any(True for name in names for _ in _find_name(text, name))


def value_spans(text: str, value: Value, names: Iterable[str] = ()) -> list[Span]:
    """Return the places where a text states a value; none of a truth value, which a text states as a whole.

    :param names: all names of an entity, if it is one.

    >>> value_spans("The captain was Ilsa Venn.", EntityValue("Ilsa Venn"))
    [(16, 25)]
    """
    match value:
        case EntityValue():
            return name_spans(text, {value.name, *names})
        case TextValue():
            return merged_spans(_find_name(text, value.text, any_case=True))
        case NumberValue():
            return list(_number_spans(text, value))
        case DateValue():
            return _date_spans(text, value)
        case ListValue():
            return merged_spans(span for item in value.items for span in value_spans(text, item))
        case BoolValue():
            return []


def _find_name(text: str, name: str, *, any_case: bool = False) -> Iterator[Span]:
    words = _plain_words(name)
    exact = len(words) == 1 and not any_case
    searched = text if exact and "_" not in text else _folded(text) if words else None
    if searched is None:
        pattern = _pattern(name, any_case)
        for found in pattern.finditer(text) if pattern else ():
            yield found.span()
        return
    if not exact:
        words = [word.lower() for word in words]
    start = searched.find(words[0])
    while start >= 0:
        end = _end_of(searched, words, start)
        if end:
            yield start, end
        start = searched.find(words[0], end or start + 1)


def _end_of(text: str, words: Sequence[str], start: int) -> int:
    """Return the end of words that begin at a place of a text; 0 if something else does."""
    if start and text[start - 1].isalnum():
        return 0
    end = start + len(words[0])
    for word in words[1:]:
        gap = end
        while gap < len(text) and gap - end <= _MAX_GAP and not text[gap].isalnum():
            gap += 1
        if not 0 < gap - end <= _MAX_GAP or not text.startswith(word, gap):
            return 0
        end = gap + len(word)
    return 0 if end < len(text) and text[end].isalnum() else end


@lru_cache(maxsize=8192)
def _plain_words(name: str) -> list[str]:
    """Return the words of a name; none if it needs a pattern: cases are simple in ASCII only."""
    return [] if not name.isascii() or "_" in name else _ANY_WORD.findall(name)


@lru_cache(maxsize=256)
def _folded(text: str) -> str | None:
    """Return a text in lower case, `None` if names have to be found by patterns.

    Cached: many names are looked for in the same texts.
    """
    return None if _UNUSUAL.search(text) else text.lower()


@lru_cache(maxsize=4096)
def _pattern(name: str, any_case: bool) -> re.Pattern[str] | None:
    """Return the pattern of a name, `None` if it has no words."""
    words = _ANY_WORD.findall(name)
    if not words:
        return None
    body = rf"[\W_]{{1,{_MAX_GAP}}}".join(map(re.escape, words))
    if not _UNSPACED.search(name):
        body = rf"(?<!\w){body}(?!\w)"
    exact = len(words) == 1 and not any_case
    return re.compile(body, 0 if exact else re.IGNORECASE)


def _number_spans(text: str, value: NumberValue) -> Iterator[Span]:
    for start, end in _numbers(text):
        if value.amount in _amounts(text[start:end], value.unit):
            yield start, end


@lru_cache(maxsize=256)
def _numbers(text: str) -> tuple[Span, ...]:
    """Return the places of numbers. Cached: the facts of a tree are looked for in the same texts."""
    return tuple(found.span() for found in _NUMBER.finditer(text))


@lru_cache(maxsize=8192)
def _amounts(written: str, unit: str) -> tuple[Decimal, ...]:
    """Return the amounts that a number may state, without and with the unit."""
    read = (
        parse_value(candidate, ValueKind.NUMBER, unit) for candidate in (written, f"{written} {unit}".strip())
    )
    amounts = [value.amount for value in read if isinstance(value, NumberValue)]
    scale, rest = scale_of(unit)
    if scale > 1 and isinstance(whole := parse_value(written, ValueKind.NUMBER, rest), NumberValue):
        amounts.append(whole.amount / scale)
    return tuple(amounts)


def _date_spans(text: str, value: DateValue) -> list[Span]:
    return [
        (found.start, found.end)
        for found in _dates(text)
        if found.year == value.year
        and (not found.month or not value.month or found.month == value.month)
        and (not found.day or not value.day or found.day == value.day)
    ]


@lru_cache(maxsize=256)
def _dates(text: str) -> tuple[DateMention, ...]:
    return tuple(find_dates(_SPACES.sub(" ", text)))


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, with overlapping ones joined."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
