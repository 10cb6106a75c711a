"""Names and numbers in the words of a question: those of its answer, and those that its program does not use."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from agentflow.facts import (
    BoolValue,
    EntityValue,
    FactStore,
    ListValue,
    NumberValue,
    Value,
    closed_sets,
    name_spans,
    outside,
    show_value,
    value_spans,
)
from agentflow.synthesis._question_draft import Check, Finding, QuestionDraft
from agentflow.text import is_content_word

_DIGITS: Final = re.compile(r"\d+(?:,\d{3})*")
_SHORT: Final = 3
"""Digits of the smallest number that is looked at: smaller ones count things, as in `the two lighthouses`."""


class QuestionMentions:
    """Finds names of a store in questions, by all their forms."""

    def __init__(self, store: FactStore) -> None:
        """Collect the names."""
        self._store = store
        self._others: dict[str, list[str]] = {}
        for alias, name in store.aliases.items():
            self._others.setdefault(name, []).append(alias)
        names = [name for fact in store.facts for name in (fact.subject, *_names(fact.value))]
        names += [name for one in store.sets.values() for name in one.members]
        # A name in small letters is also a common noun.
        self._names = tuple(name for name in dict.fromkeys(names) if not name.islower())
        self._words = Counter(word for name in self._names for word in set(name.split()))

    def faults(self, draft: QuestionDraft) -> Iterator[Finding]:
        """Yield the faults of the names and numbers in a question."""
        if leaked := next(self._leaks(draft), ""):
            yield Finding(Check.LEAKAGE, f"the question must not contain {leaked}, in any form")
        elif foreign := next(self._foreign(draft), ""):
            yield Finding(Check.NAMES, f"the question mentions {foreign}, which its program does not use")

    def _leaks(self, draft: QuestionDraft) -> Iterator[str]:
        """Yield the hidden names, and the answer, that the question has in another form."""
        allowed = self._allowed(draft)
        for name in draft.hidden:
            if outside(name_spans(draft.question, self._parts(name)), allowed):
                yield name
        answer = draft.answer
        if show_value(answer) in draft.given or isinstance(answer, BoolValue):
            return
        if isinstance(answer, NumberValue) and not answer.unit:
            return
        forms = [form for name in _names(answer) for form in self._parts(name)]
        spans = [*value_spans(draft.question, answer), *name_spans(draft.question, forms)]
        if isinstance(answer, NumberValue):
            unit = answer.unit.split()[0][:4].lower()
            spans = [
                span for span in spans if draft.question[span[1] :].lstrip(" -").lower().startswith(unit)
            ]
        if outside(spans, allowed):
            yield show_value(answer)

    def _foreign(self, draft: QuestionDraft) -> Iterator[str]:
        """Yield the names and numbers that are not in the program."""
        allowed = self._allowed(draft)
        words = " | ".join(self._words_of(draft))
        for name in self._names:
            mentions = name_spans(draft.question, self._forms(name))
            if mentions and outside(mentions, allowed) and not name_spans(words, [name]):
                yield name
        used = " ".join([*self._used(draft), *(str(step.time) for step in draft.program if step.time)])
        numbers = {_plain(found[0]) for found in _DIGITS.finditer(used)}
        for found in _DIGITS.finditer(draft.question):
            if len(_plain(found[0])) >= _SHORT and _plain(found[0]) not in numbers:
                yield found[0]

    def _used(self, draft: QuestionDraft) -> Iterator[str]:
        """Yield the texts that a program consists of."""
        yield from draft.given
        yield from self._words_of(draft)
        for step in draft.program:
            for given in step.inputs:
                if not isinstance(given, int):
                    yield show_value(given)
                    yield from (form for name in _names(given) for form in self._forms(name))

    def _words_of(self, draft: QuestionDraft) -> Iterator[str]:
        """Yield the relations and the descriptions of sets, which a question may put in other words."""
        yield from (step.relation for step in draft.program)
        for one in closed_sets(draft.program):
            if one in self._store.sets:
                yield self._store.sets[one].description

    def _allowed(self, draft: QuestionDraft) -> list[tuple[int, int]]:
        """Return the places of the program's own texts in a question."""
        return name_spans(draft.question, filter(None, dict.fromkeys(self._used(draft))))

    def _forms(self, name: str) -> list[str]:
        return [name, *self._others.get(name, ())]

    def _parts(self, name: str) -> list[str]:
        """Return the forms of a name, and those of its words that no other name has."""
        own = [word for word in name.split() if self._words[word] == 1 and word[0].isupper()]
        return [*self._forms(name), *filter(is_content_word, own)]


def _names(value: Value) -> tuple[str, ...]:
    items = value.items if isinstance(value, ListValue) else (value,)
    return tuple(item.name for item in items if isinstance(item, EntityValue))


def _plain(number: str) -> str:
    return number.replace(",", "")
