"""Lists of an answer in prose: their items, and the numbers or dates stated with each."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from agentflow.values._clauses import (
    MASK,
    Span,
    asserted,
    has_alternatives,
    is_denied,
    is_uncertain,
    mask,
    sentences,
    within,
)
from agentflow.values._date_reading import read_dates
from agentflow.values._names import NameReader
from agentflow.values._number_reading import read_numbers
from agentflow.values._values import (
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    bare_text,
    records_of,
    split_list,
)

_LEAD: Final = re.compile(
    r"(?:\b(?:is|was|are|were|be|includes?|included|comprises?|contains?|named|namely|as follows)\b:?|:)\s*",
    re.IGNORECASE,
)
_SEPARATOR: Final = re.compile(
    r"[,;\n:]|[.!?](?=\s|$)|\band\b|\bthen\b|&|(?<!\S)\(?\d{1,2}[.)](?=\s)|(?<!\S)[-*•](?=\s)"
)
_FURTHER: Final = re.compile(
    r"\s*(?:\(?\d{1,2}[.)]\s|[-*•]\s|(?:also|and|plus|additionally|another|finally|lastly|as well as)\b)",
    re.IGNORECASE,
)
"""Beginning of a sentence or line that continues an enumeration."""
_OPEN: Final = re.compile(
    r"\b(?:etc|(?:and|among|with|plus) (?:many |some |several |two |three )?(?:others|more)|and so (?:on|forth)|such as|for example|for instance"
    r"|e\.g|including|amongst others|at least)\b",
    re.IGNORECASE,
)
"""Words of a list that may have further items."""
_BRACKETS: Final = re.compile(r"\([^()]*\)")
_ARTICLES: Final = re.compile(r"(?:the|a|an|then|first|second|third|finally|lastly)\s+", re.IGNORECASE)


def read_list_answer(
    answer: str,
    like: ListValue,
    question: str,
    read: Callable[[str, ScalarValue, str], ScalarValue | None],
) -> ListValue | None:
    """Return the list that an answer states, with all items, expected or not.

    :param read: reads a single value of an answer, like the expected one, to a question.
    """
    first = next(iter(like.items), None)
    items: Sequence[ScalarValue] | None
    match first:
        case None:
            return None
        case _ if len(like.items) == 1:
            value = read(answer, first, question)
            items = None if value is None else [value]
        case NumberValue() if _alike(like):
            items = read_numbers(answer, first, question, listed=True)
        case DateValue() if _alike(like):
            items = read_dates(answer, first, question)
        case EntityValue() | TextValue():
            items = _read_records(answer, like, question, read)
        case _:
            values = [read(item, first, question) for item in split_list(_without_lead(answer))]
            items = [value for value in values if value is not None]
            items = items if len(items) == len(values) and _alike(like) else None
    return ListValue(tuple(items), like.ordered) if items else None


def _alike(like: ListValue) -> bool:
    return len({type(item) for item in like.items}) == 1


def _read_records(
    answer: str,
    like: ListValue,
    question: str,
    read: Callable[[str, ScalarValue, str], ScalarValue | None],
) -> list[ScalarValue] | None:
    """Return the named items of an enumeration, each with the values that the text states before the next name."""
    records = records_of(like.items)
    expected = {_name(record[0]): record for record in records}
    named = _read_names(answer, list(expected), question)
    if named is None:
        return None
    kind = type(like.items[0])
    items: list[ScalarValue] = []
    for index, (name, span) in enumerate(named):
        end = named[index + 1][1][0] if index + 1 < len(named) else len(answer)
        items.append(TextValue(name) if kind is TextValue else EntityValue(name))
        part = answer if len(named) == 1 else answer[span[1] : end]
        for like_value in expected.get(name, records[0])[1:]:
            value = read(part, like_value, question)
            items.extend([] if value is None else [value])
    return items


def _name(item: ScalarValue) -> str:
    match item:
        case EntityValue(name):
            return name
        case TextValue(text):
            return text
        case _:
            return ""


def _read_names(answer: str, like: Sequence[str], question: str = "") -> list[tuple[str, Span]] | None:
    """Return the names that an enumeration states, in its order, each with its span.

    `None` if the answer hedges or offers alternatives. A name that is not among the expected ones is returned, too.

    :param like: the expected names, which may contain commas and `and`.
    """
    reader = NameReader(answer, question)
    named_spans = _longest(sorted((span, name) for name in dict.fromkeys(like) for span in reader.find(name)))
    masked = mask(answer, [span for span, _ in named_spans])
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked) or _OPEN.search(masked):
        return None
    if not named_spans:
        return [(item, (0, 0)) for item in split_list(_without_lead(answer))]
    stated = asserted(masked)
    parts = sentences(masked)
    start = next(first for first, last in parts if first <= named_spans[0][0][0] < last)
    end = _end(masked, parts, named_spans[-1][0][0])
    proper = any(name[:1].isupper() for name in like)
    leads = [match.end() for match in _LEAD.finditer(masked, start, named_spans[0][0][0])]
    region = (leads[-1] if leads else start, end)
    others = _other_names(reader, _without_brackets(masked), region, stated, proper=proper, lead=bool(leads))
    named = [(name, span) for span, name in named_spans if within(span, stated)]
    return sorted([*named, *others], key=lambda named_span: named_span[1])


def _without_brackets(text: str) -> str:
    """Replace remarks in brackets by spaces."""
    return _BRACKETS.sub(lambda match: " " * len(match[0]), text)


def _other_names(
    reader: NameReader, masked: str, region: Span, stated: Sequence[Span], *, proper: bool, lead: bool
) -> Iterator[tuple[str, Span]]:
    """Iterate over the items of an enumeration that begin with another name."""
    cuts = [(match.start(), match.end()) for match in _SEPARATOR.finditer(masked, *region)]
    starts, ends = [region[0], *(end for _, end in cuts)], [*(start for start, _ in cuts), region[1]]
    for start, end in zip(starts, ends, strict=True):
        item = masked[start:end]
        word = start + len(item) - len(item.lstrip())
        is_settled = MASK in item or not item.strip() or not within((word, word + 1), stated)
        if not is_settled and reader.opens_with_item(
            (start, end), proper=proper, first=start == region[0] and not lead
        ):
            yield bare_text(_ARTICLES.sub("", item.strip())), (start, end)


def _end(masked: str, parts: Sequence[Span], last: int) -> int:
    """Return the end of an enumeration: that of its last sentence, or of the last one that continues it."""
    rest = [(start, end) for start, end in parts if end > last]
    end = rest[0][1]
    for start, stop in rest[1:]:
        if not _FURTHER.match(masked, start):
            break
        end = stop
    return end


def _longest(named_spans: Sequence[tuple[Span, str]]) -> list[tuple[Span, str]]:
    """Return the spans without those inside of others, and each name once."""
    kept: list[tuple[Span, str]] = []
    names: set[str] = set()
    for span, name in sorted(named_spans, key=lambda named_span: (named_span[0][0], -named_span[0][1])):
        if (not kept or span[0] >= kept[-1][0][1]) and name not in names:
            kept.append((span, name))
            names.add(name)
    return kept


def _without_lead(answer: str) -> str:
    lead = list(_LEAD.finditer(answer))
    return answer[lead[-1].end() :] if lead else answer
