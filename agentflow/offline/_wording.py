"""Words for questions, from their programs."""

import re

from msgspec.structs import replace

from agentflow.facts import Operator, Wording, WordingRequest
from agentflow.offline._expressions import Expression, limited_to, nested
from agentflow.offline._phrases import (
    ORDINALS,
    RELATIVE,
    Clause,
    PhraseWriter,
    Unspeakable,
    is_person,
    is_plural,
    joined,
    merged,
    series,
)
from agentflow.offline._relations import BE, HAVE, YEAR_IN, RelationWords, words_of
from agentflow.offline._words import plural_of

_NESTED = re.compile(r". (?:that|who|whose|where) ")
"""Relative clause within another one."""
_SURFACES = ("island", "ship", "ferry", "square")
"""Nouns of places that things are on."""


def word(request: WordingRequest) -> Wording:
    """Return natural words for a question; none if the program has no natural ones."""
    year = next((step.time for step in request.steps if step.time), "")
    untimed = replace(request, steps=tuple(replace(step, time="") for step in request.steps))
    whole = nested(untimed.steps)
    if whole is None or (year and limited_to(whole, year) != nested(request.steps)):
        return Wording("")
    try:
        writer = _QuestionWriter(untimed, timed=bool(year))
        question = writer.fronted(writer.question(whole))
    except Unspeakable:
        return Wording("")
    if year:
        question = f"in {year}, {question[0].lower()}{question[1:]}"
    if len(question.split()) > request.max_words or question in {each.question for each in request.rejected}:
        return Wording("")
    return Wording(question[0].upper() + question[1:])


class _QuestionWriter(PhraseWriter):
    """Words for the program of a request."""

    def question(self, whole: Expression) -> str:
        """Return the question for a program."""
        match whole.operator:
            case Operator.FOLLOW:
                return self._follow(whole)
            case Operator.COUNT:
                return self._count(whole)
            case Operator.LIST:
                return self._list(whole)
            case Operator.GREATEST | Operator.LEAST:
                return self._superlative(whole)
            case Operator.SUM:
                return self._sum(whole)
            case Operator.DIFFERENCE:
                return self._difference(whole)
            case Operator.BEFORE | Operator.GREATER:
                return self._compared(whole)
            case Operator.EQUAL:
                return self._equal(whole)
            case _:
                return self._which(whole, plural=False)

    def fronted(self, question: str) -> str:
        """Return a question after the closed set that it is about: `of the three main islands, where …`."""
        return f"of {self.front}, {question[0].lower()}{question[1:]}" if self.front else question

    def _follow(self, whole: Expression) -> str:
        words = words_of(whole.relation, self.unit)
        subject = whole.inputs[0]
        if words.part:
            owner = f"the {words.part} of {self.owner(subject)}"
        elif isinstance(subject, Expression) and (split := self.split(subject)) is not None:
            return self._of_described(words, split, whole.relation)
        else:
            owner = self.thing(subject)
        past = self.past(words, whole.relation)
        many = words.part.endswith("s")
        if words.asked and not words.part and RELATIVE.search(owner):
            return f"what {'was' if past and not words.event else 'is'} the {whole.relation} of {owner}?"
        if words.asks and not self.unit:
            return words.asks.format(e=owner, **{"is": BE.finite(past=past, plural=False)})
        if words.asks or not words.ask:
            unit = f", in {self.unit}" if self.unit else ""
            return f"what {'was' if past else 'is'} the {whole.relation} of {owner}{unit}?"
        return f"{words.ask} {Clause(words.verb, words.asked, past).asked(owner, plural=many)}?"

    def _of_described(self, words: RelationWords, described: tuple[str, str], relation: str) -> str:
        """Return a question about a thing with a relative clause, which goes to the end."""
        head, clause = described
        whole = f"{head} {clause}".strip()
        past = self.past(words, relation)
        if words.asks and not self.unit:
            return words.asks.format(e=whole, **{"is": BE.finite(past=past, plural=False)})
        if words.asks or not words.ask:
            unit = f", in {self.unit}" if self.unit else ""
            return f"what {'was' if past else 'is'} the {relation} of {whole}{unit}?"
        if words.counted and words.verb is HAVE and RELATIVE.match(f" {clause}") and not is_person(head[4:]):
            place = "on" if head.endswith(_SURFACES) else "in"
            return f"{words.ask} {'were' if past else 'are'} there {place} {whole}?"
        inside = head == "the one" or not RELATIVE.match(f" {clause}")
        if inside or (words.verb is not BE and not _NESTED.search(clause)):
            return f"{words.ask} {Clause(words.verb, words.asked, past).asked(whole)}?"
        if words.asked and words.asked in clause:
            raise Unspeakable  # `in which year was the ship launched that was launched by …`
        return f"{words.ask} {Clause(words.verb, words.asked, past).asked(head)} {clause}".rstrip() + "?"

    def _which(self, whole: Expression, *, plural: bool) -> str:
        found = self.conditions(whole)
        if not found.clauses:
            raise Unspeakable
        said = joined(found.clauses, plural=plural)
        if found.group:
            return f"which of {found.group} {said}?"
        if found.noun == "person":
            return f"which people {said}?" if plural else f"who {said}?"
        if not found.noun:
            return f"what {joined(found.clauses)}?"
        return f"which {plural_of(found.noun) if plural else found.noun} {said}?"

    def _count(self, whole: Expression) -> str:
        found = self.conditions(whole.inputs[0])
        if not found.clauses:
            raise Unspeakable
        said = joined(found.clauses, plural=True)
        if found.group:
            return f"how many of {found.group} {said}?"
        return f"how many {plural_of(found.noun)} {said}?"

    def _list(self, whole: Expression) -> str:
        inner = whole.inputs[0]
        if isinstance(inner, Expression) and inner.operator is Operator.FOLLOW:
            group = self.group(inner.inputs)
            if group and not words_of(inner.relation).asks.startswith("Who "):
                return f"what is the {inner.relation} of each of {group}?"
            raise Unspeakable
        return self._which(inner if isinstance(inner, Expression) else whole, plural=True)

    def _superlative(self, whole: Expression) -> str:
        clause = self.extreme(whole)
        if group := self.group(whole.inputs):
            return f"which of {group} {clause.said()}?"
        items = [self.thing(each) for each in self.items(whole.inputs)]
        if len(items) < 2:
            raise Unspeakable
        noun = self.nouns.get(whole) or words_of(whole.relation).noun
        pair = len(items) == 2
        if is_person(noun):
            who = "who"
        elif noun and noun != "place":
            who = f"which {noun}"
        else:
            who = f"which of the {ORDINALS.get(len(items), 'things')}"
        return f"{who} {clause.said()}{', ' if pair else ': '}{series(items, 'or')}?"

    def _sum(self, whole: Expression) -> str:
        parts = [each for each in self.items(whole.inputs) if isinstance(each, Expression)]
        relations = {each.relation for each in parts}
        if len(parts) != len(whole.inputs) or len(relations) != 1:
            raise Unspeakable
        if any(each.operator is not Operator.FOLLOW for each in parts):
            raise Unspeakable
        relation = relations.pop()
        words = words_of(relation, self.unit)
        together = "in total"
        if len(parts) == 1:
            owners = self.group(parts[0].inputs) or self.things(parts[0].inputs[0])
        else:
            owners = merged([each.inputs[0] for each in parts], self)
            together = "together"
        if words.counted or (words.ask and words.verb not in (BE, HAVE)):
            start = words.verb.auxiliary(past=self.past(words, relation), plural=True)
            return f"{words.ask} {start} {owners} {words.verb.stem} {together}?"
        unit = f", in {self.unit}" if self.unit else ""
        return f"what is the total {relation} of {owners}{unit}?"

    def _difference(self, whole: Expression) -> str:
        first, second = self._pair(whole)
        words, other = words_of(first.relation), words_of(second.relation)
        if words.event and other.event:
            return self._years_between(first, second)
        if first.relation != second.relation or words.event or other.event:
            raise Unspeakable
        one, two = self.thing(first.inputs[0]), self.thing(second.inputs[0])
        if words.counted or words.part or not self.unit:
            return f"what is the difference between the {first.relation} of {one} and that of {two}?"
        both = merged([first.inputs[0], second.inputs[0]], self)
        return f"by how many {self.unit} do {both} differ in {first.relation}?"

    def _years_between(self, first: Expression, second: Expression) -> str:
        words = words_of(first.relation)
        if first.relation == second.relation:
            both = merged([first.inputs[0], second.inputs[0]], self)
            if not RELATIVE.search(both):
                start = words.verb.auxiliary(past=True, plural=True)
                done = " ".join(filter(None, (words.verb.infinitive, words.asked)))
                return f"how many years apart {start} {both} {done}?"
            return f"how many years passed between {self._event(first)} and that of {self.owner(second.inputs[0])}?"
        later = self._event(second)
        owner = self.thing(first.inputs[0])
        if not is_person(self.nouns.get(first, "") or words.noun):
            later = re.sub(
                rf"\bthe ((?:(?!of\b)[\w’'-]+ )+)of {re.escape(owner)}(?!\w)", r"its \1", later
            ).rstrip()
        return f"how many years passed between {self._event(first)} and {later}?"

    def _event(self, part: Expression) -> str:
        words = words_of(part.relation)
        return f"the {words.event} of {self.owner(part.inputs[0])}"

    def _pair(self, whole: Expression) -> tuple[Expression, Expression]:
        if len(whole.inputs) != 2:
            raise Unspeakable
        first, second = whole.inputs
        if isinstance(first, str) or isinstance(second, str):
            raise Unspeakable
        if first.operator is not Operator.FOLLOW or second.operator is not Operator.FOLLOW:
            raise Unspeakable
        return first, second

    def _compared(self, whole: Expression) -> str:
        if len(whole.inputs) != 2:
            raise Unspeakable
        first, second = whole.inputs
        if isinstance(first, str) or first.operator is not Operator.FOLLOW:
            raise Unspeakable
        words = words_of(first.relation)
        subject = self.thing(first.inputs[0])
        if isinstance(second, str):
            pattern = words.less if whole.operator is Operator.BEFORE else words.more
            if not pattern:
                raise Unspeakable
            said = second.removesuffix(f" {words.unit}") if words.counted else second
            return f"{self.clause(words, pattern, said, first.relation).asked(subject)}?"
        if second.operator is not Operator.FOLLOW:
            raise Unspeakable
        other = self.thing(second.inputs[0])
        if whole.operator is Operator.GREATER:
            if first.relation != second.relation or not words.than:
                raise Unspeakable
            return f"{self.clause(words, words.than, other, first.relation).asked(subject)}?"
        if not words.event:
            raise Unspeakable
        said = other if first.relation == second.relation else self._happened(second)
        return f"{self.clause(words, words.less, said, first.relation).asked(subject)}?"

    def _happened(self, part: Expression) -> str:
        """Return an event as a clause: `Alba was founded`."""
        words = words_of(part.relation)
        if not words.event:
            raise Unspeakable
        subject = self.thing(part.inputs[0])
        clause = Clause(words.verb, words.asked, True)
        return f"{subject} {clause.said(plural=is_plural(subject))}"

    def _equal(self, whole: Expression) -> str:
        if len(whole.inputs) != 2:
            raise Unspeakable
        first, second = whole.inputs
        if isinstance(first, str):
            if isinstance(second, str):
                raise Unspeakable
            return self._equal(whole._replace(inputs=(second, first)))
        if first.operator is not Operator.FOLLOW:
            raise Unspeakable
        words = words_of(first.relation)
        subject = self.thing(first.inputs[0])
        if isinstance(second, Expression):
            if second.operator is not Operator.FOLLOW:
                raise Unspeakable
            other = self.thing(second.inputs[0])
            if first.relation == second.relation and words.event:
                same = f"{words.asked} in the same year".strip()
                start = words.verb.auxiliary(past=True, plural=True)
                return f"{start} {subject} and {other} {words.verb.infinitive} {same}?".replace("  ", " ")
            if first.relation == second.relation and words.ask == "Where" and words.asked:
                both = merged([first.inputs[0], second.inputs[0]], self)
                be = BE.finite(past=self.past(words, first.relation), plural=True)
                return f"{be} {both} {words.asked} in the same place?"
            if first.relation == second.relation:
                done = "did" if self.past(words, first.relation) else "do"
                return f"{done} {subject} and {other} have the same {first.relation}?"
            if words.event:
                year = f"{YEAR_IN}{self._happened(second)}"
                return f"{self.clause(words, words.value, year, first.relation).asked(subject)}?"
            be = BE.finite(past=self.past(words, first.relation), plural=False)
            return f"{be} {self.thing(first)} also {self.thing(second)}?"
        if words.value and "{is}" not in words.asks:
            said = self.name(second)
            if words.counted:
                said = said.removesuffix(f" {words.unit}")
            return f"{self.clause(words, words.value, said, first.relation).asked(subject)}?"
        be = BE.finite(past=self.past(words, first.relation), plural=False)
        return f"{be} {self.name(second)} the {first.relation} of {subject}?"
