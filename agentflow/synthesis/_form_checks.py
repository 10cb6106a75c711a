"""Checks of the words of a question: their form, and the names and numbers that they mention; each returns one line or an empty text."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from agentflow.facts import (
    BoolValue,
    EntityValue,
    FactStore,
    ListValue,
    NumberValue,
    Value,
    closed_sets,
    instructs,
    name_spans,
    outside,
    show_value,
    value_spans,
)
from agentflow.synthesis._question_draft import Check, Finding, QuestionDraft
from agentflow.text import contains_phrase, is_content_word, word_count

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


def check_form(draft: QuestionDraft, most_words: int) -> Iterator[Finding]:
    """Yield the faults of a question's words."""
    reasons = {
        Check.QUESTION: asks(draft.question),
        Check.VERBOSITY: is_brief(draft.question, most_words),
        Check.SELF_CONTAINED: stands_alone(draft.question),
        Check.LEAKAGE: hides(draft.question, _secrets(draft)),
        Check.NAMES: names_all(draft.question, draft.given),
    }
    yield from (Finding(check, reason) for check, reason in reasons.items() if reason)


def _secrets(draft: QuestionDraft) -> Iterator[str]:
    """Yield the names that the question must not contain: hidden ones, and the answer unless the reader chooses from names."""
    yield from draft.hidden
    answer = show_value(draft.answer)
    if not isinstance(draft.answer, BoolValue) and answer not in draft.given:
        yield answer


def hides(question: str, names: Iterable[str]) -> str:
    """Return a message if the question contains one of these names, else an empty text."""
    found = [name for name in names if contains_phrase(question, name)]
    return f"the question must not contain {found[0]}" if found else ""


def names_all(question: str, names: Iterable[str]) -> str:
    """Return a message if the question lacks one of these names, else an empty text."""
    missing = [name for name in names if not contains_phrase(question, name)]
    return f"the question has to contain {missing[0]}" if missing else ""


_IMPERATIVES: Final = re.compile(
    r"\W*(?:calculate|compute|count|determine|estimate|find|give|identify|list|name|state)\b", re.IGNORECASE
)


_SOURCE: Final = (
    r"documents?|texts?|passages?|articles?|observations?|snippets?|excerpts?|search results?"
    r"|web ?pages?|tool outputs?|trajectory|trajectories"
)


_SPECIFIED: Final = r"(?!\s+(?:of|between|through|by|engraved|inscribed|carved|called|named|titled|entitled)\b)(?!\s+['\"‘“«])"
"""Words that identify the document."""


_REFERENCES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # Proper names such as the Document Foundation are capitalised and do not match.
        rf"\b(?:[Tt]he|[Tt]h(?:is|at|ese|ose)) (?:(?:given|provided|following|cited|above) )?(?:{_SOURCE})\b{_SPECIFIED}",
        r"\b[Aa]ccording to (?:the )?(?:search|retrieved|provided|given|above|observations?|documents?|results?)\b",
        r"\b(?:[Ff]rom|[Ii]n|[Pp]er|[Tt]o|[Oo]n) the (?:context|evidence|outputs?|results?|sources?)(?=\s*(?:[?.,;:!]|$))",
        r"\b[Oo]bservations? (?:number )?#?\d+\b",
        r"\b(?:[Dd]ocument|[Rr]esult|[Pp]assage|[Hh]it) #?\d+\b",
        r"\b[Tt]he above\b(?!-)",
        r"\b(?:mentioned|described|listed|given|shown|stated|named|quoted|cited|as) (?:above|below|earlier|previously)\b",
        r"\b(?:above|below)[\s-]*mentioned\b|\baforementioned\b",
        r"\b[Tt]he (?:initial |starting )?seed(?: (?:topic|data|question|content|text))?(?=\s*(?:[?.,;:!]|$))",
        r"\b[Tt]he (?:starting seed|initial seed|seed (?:topic|data|question|content|text|mentions|says|describes))\b",
        r"上述|上文|该文档|本文|这篇文章|文档中|搜索结果|观察结果",
    )
)


_PRONOUN: Final = r"(?:it|they|he|she|him|her|them)"


_DANGLING: Final = (
    re.compile(rf"\W*{_PRONOUN}\b", re.IGNORECASE),
    re.compile(r"\W*(?:its|their|his)\b", re.IGNORECASE),
    re.compile(
        rf"\W*(?:(?:who|what|when|where|why|which|how(?: \w+)?|in what year|in which year)\W+)?"
        rf"(?:is|are|was|were|does|do|did|has|have|had|can|could|will|would) {_PRONOUN}\b"
        r"(?! (?:that|who)\b)(?! (?:\w+ ){1,2}(?:that|to|for|than)\b)(?! \w+er (?:in|on|at)\b)",
        re.IGNORECASE,
    ),
    re.compile(r"\W*(?:this|that|these|those) (?:is|was|are|were|has|had)\b", re.IGNORECASE),
    re.compile(
        r"\W*(?:what |who |where |when )?(?:is|was|are|were) (?:this|that|these|those)(?:\s*[?,]| (?:a|an|the)\b)",
        re.IGNORECASE,
    ),
)


def asks(question: str) -> str:
    """Return the reason that this is no question, or an empty text."""
    if word_count(question) < 3:
        return "the question has fewer than three words"
    if instructs(question):
        return "the question contains an instruction: it should only ask"
    if question.rstrip(" \"'”’)").endswith(("?", "？", "؟")) or _IMPERATIVES.match(question):
        return ""
    return "the question does not ask: end it with a question mark"


def is_brief(question: str, most: int) -> str:
    """Return a message if the question is too long, else an empty text."""
    length = word_count(question)
    return f"the question has {length:.0f} words: at most {most}" if length > most else ""


def stands_alone(question: str) -> str:
    """Return the reason that the question can't be understood on its own, or an empty text."""
    for pattern in _REFERENCES:
        found = pattern.search(question)
        if found:
            return f"the question points at something its reader does not see: {found[0].strip()}"
    for pattern in _DANGLING:
        found = pattern.match(question)
        if found:
            return f"the question begins with a pronoun that stands for nothing: {found[0].strip()}"
    return ""
