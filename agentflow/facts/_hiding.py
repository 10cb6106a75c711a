"""Hiding of facts in texts: all spans that state them."""

import re
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from agentflow.facts._aliases import entity_names
from agentflow.facts._facts import Fact
from agentflow.facts._mentions import (
    PRONOUN,
    Span,
    contains_name,
    merged_spans,
    name_spans,
    outside,
    sentence_spans,
    span_at,
    value_spans,
)
from agentflow.facts._normal_forms import relation_key
from agentflow.facts._store import FactStore
from agentflow.facts._values import BoolValue, EntityValue, NumberValue, Value

HIDDEN: Final = "[…]"
"""Mark in the place of a hidden span."""
_WORD: Final = re.compile(r"[^\W_]+")
_MAX_SENTENCE: Final = 600
"""Characters of the longest sentence that is searched for a statement about an earlier name."""


def hide_facts(text: str, spans: Iterable[Span]) -> str:
    """Replace parts of a text by a mark.

    >>> hide_facts("Built in 1834 by Ada Holm.", [(9, 13)])
    'Built in […] by Ada Holm.'
    """
    return "".join(
        part if source >= 0 else HIDDEN for part, source in visible_parts(text, 0, len(text), spans)
    )


def stating_spans(
    store: FactStore, facts: Iterable[Fact], node: str, text: str, offset: int = 0
) -> list[Span]:
    """Return the spans to hide in a part of an observation, so that it no longer states any of the facts.

    Of each span that was extracted, the value is hidden; of a truth value, the whole span. Values are also hidden in
    other sentences that contain them and the subject, or a pronoun after it.

    See docs/facts.md.

    :param text: the part.
    :param offset: start of the part in the observation's text.
    """
    names = _names_of(store)
    found = (span for fact in facts for span in _stating(store, fact, names, node, text, offset))
    return merged_spans((start, end) for start, end in found if start < end)


def visible_parts(text: str, start: int, end: int, spans: Iterable[Span]) -> Iterator[tuple[str, int]]:
    """Yield the visible parts of a text with their start, and an empty part with -1 for each hidden span."""
    position = start
    for left, right in merged_spans(spans):
        left, right = max(left, position), min(right, end)
        if left >= right:
            continue
        if left > position:
            yield text[position:left], position
        yield "", -1
        position = right
    if position < end:
        yield text[position:end], position


_NAMES: Final[MutableMapping[FactStore, "_Names"]] = WeakKeyDictionary()


def _names_of(store: FactStore) -> "_Names":
    if (known := _NAMES.get(store)) is None:
        known = _NAMES[store] = _Names(store)
    return known


class _Names:
    """All names of each entity, and the longer names of other entities that contain them."""

    def __init__(self, store: FactStore) -> None:
        self._others: dict[str, list[str]] = {}
        for alias, name in store.aliases.items():
            self._others.setdefault(name, []).append(alias)
        self._all = dict.fromkeys(
            name
            for fact in store.facts
            for each in (fact.subject, *entity_names(fact.value))
            for name in self.of(each)
        )
        self._longer: dict[str, list[str]] = {}
        self._with: dict[str, list[str]] = {}
        """Names by their words in lower case; those whose cases are not simple, under no word."""
        for name in self._all:
            for word in dict.fromkeys(_WORD.findall(name.lower())) if name.isascii() else ("",):
                self._with.setdefault(word, []).append(name)

    def of(self, name: str) -> list[str]:
        return [name, *self._others.get(name, ())]

    def surname(self, name: str) -> str:
        """Return the last word of a name if it can only mean this entity; else an empty text."""
        last = name.split()[-1]
        return last if len(last) > 2 and last[0].isupper() and last not in self._all else ""

    def spans(self, text: str, name: str) -> list[Span]:
        """Return the mentions of an entity: not those of Maddon in the name of Low Maddon."""
        found = name_spans(text, self.of(name))
        if not found:
            return found
        if name not in self._longer:
            own = self.of(name)
            self._longer[name] = [
                other
                for each in own
                for other in self._containing(each)
                if other not in own and len(each) < len(other) and contains_name(other, (each,))
            ]
        longer = name_spans(text, self._longer[name])
        return outside(found, longer)

    def _containing(self, name: str) -> Iterable[str]:
        """Return the names that may contain another."""
        words = _WORD.findall(name.lower())
        if not name.isascii() or not words:
            return self._all
        return [*self._with.get(words[0], ()), *self._with.get("", ())]


def _stating(
    store: FactStore, fact: Fact, names: _Names, node: str, text: str, offset: int
) -> Iterator[Span]:
    end = offset + len(text)
    own: set[Span] = set()
    for span in fact.spans:
        if span.node != node or span.image or span.end <= offset or span.start >= end:
            continue
        place = (span.value_start, span.value_end) if span.value_end else (span.start, span.end)
        own.add((span.start - offset, span.end - offset))
        yield max(place[0] - offset, 0), min(place[1] - offset, len(text))
    if isinstance(fact.value, BoolValue):
        return
    subjects = names.spans(text, fact.subject)
    values = _value_spans(text, fact.value, names, subjects)
    if not values:
        return
    kept = _other_values(store, fact, node, offset, own)
    sentences = sentence_spans(text)
    surname = names.surname(fact.subject)
    with_subject = {span_at(sentences, start) for start, _ in subjects}
    for start, finish in values:
        inside = any(first <= start and finish <= last for first, last in own)
        index = span_at(sentences, start)
        if (start, finish) in kept:
            continue
        if inside or index in with_subject or _continues(text, sentences, index, subjects, surname):
            yield start, finish
    if isinstance(fact.value, EntityValue):
        yield from _inverse(fact.relation, names.surname(fact.value.name), text, sentences, subjects, values)


def _value_spans(text: str, value: Value, names: _Names, subjects: Sequence[Span]) -> list[Span]:
    """Return the mentions of a value; a number in the subject's name, such as Tower 12, is none."""
    if isinstance(value, EntityValue):
        return names.spans(text, value.name)
    found = value_spans(text, value)
    return outside(found, subjects) if isinstance(value, NumberValue) else found


def _other_values(store: FactStore, fact: Fact, node: str, offset: int, own: set[Span]) -> set[Span]:
    """Return the places of other values in the same quotes or rows: another column with the same number."""
    return {
        (span.value_start - offset, span.value_end - offset)
        for other in store.about(fact.subject)
        if other.id != fact.id
        for span in other.spans
        if span.node == node and span.value_end and (span.start - offset, span.end - offset) in own
    } - {(span.value_start - offset, span.value_end - offset) for span in fact.spans if span.node == node}


def _continues(text: str, sentences: Sequence[Span], index: int, named: Sequence[Span], surname: str) -> bool:
    """Return whether a sentence goes on about something that its paragraph named before."""
    start, end = sentences[index]
    paragraph = text.rfind("\n\n", 0, start) + 1
    before = span_at(named, start)
    if before < 0 or named[before][0] < paragraph:
        return False
    said = text[start:end]
    return (
        contains_name(said, (surname,))
        or PRONOUN.search(said) is not None
        or said.startswith(("The ", "This "))
    )


def _inverse(
    relation: str,
    name: str,
    text: str,
    sentences: Sequence[Span],
    subjects: Sequence[Span],
    values: Sequence[Span],
) -> Iterator[Span]:
    """Yield the subject in sentences that say "she was the captain of it" after a name that is the value."""
    words = set(relation_key(relation).split())
    for start, finish in subjects:
        index = span_at(sentences, start)
        first, last = sentences[index]
        before = span_at(values, last)
        if last - first > _MAX_SENTENCE or (before >= 0 and values[before][0] >= first):
            continue
        said = set(relation_key(text[first:last]).split())
        if words & said and _continues(text, sentences, index, values, name):
            yield start, finish
