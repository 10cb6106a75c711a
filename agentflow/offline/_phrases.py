"""Noun phrases and clauses for the parts of a program."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from agentflow.facts import Comparison, Operator, WordingRequest
from agentflow.offline._expressions import Expression, nested
from agentflow.offline._relations import BE, HAVE, LIVES, RelationWords, Verb, site_of, words_of
from agentflow.offline._words import DONE, KINDS, PERSONS, PLURALS, plural_of

_SETS = frozenset({Operator.MEMBERS, Operator.WHERE, Operator.FIND, Operator.AND, Operator.OR})
_BEFORE_NUMBER = re.compile(r"(\w+) (?:for |only |about )?\d")
_PERIOD = re.compile(r"(?:the )?(?:\d{3,4}s|\d{1,2}(?:st|nd|rd|th) century)", re.IGNORECASE)
_AS_ROLE = re.compile(r"(?P<value>.+) as its (?P<role>.+)")
_YARD = re.compile(r"\b(?:[Ss]hipyard|Yard|Works|Station|[Oo]bservatory|Mill|Dock|Airport)(?: of .*)?$")
RELATIVE = re.compile(r" (?:that|who|whose|where) ")
"""Relative clause in a phrase."""
_DONE = re.compile(rf"{DONE} (?:by|in|at|before|after|first|last|earlier|later)\b")
ORDINALS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


_PAST_SITES = frozenset({"born", "buried", "built", "signed"})


class Unspeakable(Exception):
    """A program without natural words."""


class Clause(NamedTuple):
    """A verb and what follows it."""

    verb: Verb
    rest: str
    past: bool

    def said(self, *, plural: bool = False) -> str:
        """Return the clause after a subject: `was founded in 1204`."""
        return f"{self.verb.finite(past=self.past, plural=plural)} {self.rest}".strip()

    def asked(self, subject: str, *, plural: bool = False) -> str:
        """Return the clause as a question: `was Alba founded in 1204`."""
        start = self.verb.auxiliary(past=self.past, plural=plural or is_plural(subject))
        return " ".join(filter(None, (start, subject, self.verb.infinitive, self.rest)))

    @property
    def reduced(self) -> str:
        """The clause after a noun without a relative pronoun: `founded in 1204`; empty if it needs one."""
        return self.rest if self.verb is BE and _DONE.match(self.rest) else ""


class Conditions(NamedTuple):
    """Things that meet conditions."""

    clauses: tuple[Clause, ...]
    """The conditions."""
    group: str = ""
    """Closed set that the things belong to: `the three main islands`."""
    noun: str = ""
    """Class of the things."""


def is_plural(name: str) -> bool:
    """Return true if a verb after this name is plural."""
    return name.rpartition(" ")[2] in PLURALS and " of " not in name


class PhraseWriter:
    """Words for the parts of the program of a request."""

    def __init__(self, request: WordingRequest, *, timed: bool = False) -> None:
        """Create the writer of a request.

        :param timed: the question is about a year.
        """
        self._timed = timed
        self._definite = frozenset(request.definite)
        self._facts = request.facts
        self.unit = request.unit
        self.front = ""
        self.nouns: dict[Expression, str] = {}
        for number, noun in enumerate(request.nouns, start=1):
            if noun and (part := nested(request.steps[:number])) is not None:
                self.nouns[part] = noun

    def name(self, text: str) -> str:
        """Return a constant as written in the middle of a sentence."""
        class_, of, _ = text.partition(" of ")
        definite = text in self._definite or (bool(of) and class_.lower() in KINDS)
        told = re.compile(rf"\b[Tt]he {re.escape(text)}(?! [A-Z]|\w)")
        return f"the {text}" if definite or any(map(told.search, self._facts)) else text

    def thing(self, part: Expression | str) -> str:
        """Return a phrase for one thing."""
        if isinstance(part, str):
            return self.name(part)
        match part.operator:
            case Operator.FOLLOW:
                return self._related(part)
            case Operator.GREATEST | Operator.LEAST:
                return self._best(part)
            case Operator.FIND | Operator.AND | Operator.WHERE:
                return " ".join(self._described(part))
            case Operator.COUNT:
                return f"the number of {self.things(part.inputs[0])}"
            case _:
                raise Unspeakable

    def _related(self, part: Expression) -> str:
        subject = part.inputs[0]
        if isinstance(subject, Expression) and subject.operator is Operator.MEMBERS:
            raise Unspeakable
        owner = self.owner(subject)
        if part.relation == "kind":
            raise Unspeakable
        if part.relation not in LIVES and (split := self.split(part)) is not None:
            return " ".join(filter(None, split))
        return f"the {part.relation} of {owner}"

    def owner(self, part: Expression | str) -> str:
        """Return a phrase for a thing after `of`: `the town where Ida Holt was born`, without a second `of`."""
        if isinstance(part, Expression) and part.operator is Operator.FOLLOW and part.relation in LIVES:
            split = self.split(part)
            return self.thing(part) if split is None else " ".join(split)
        return self.thing(part)

    def _described(self, part: Expression) -> tuple[str, str]:
        """Return noun and relative clause of a phrase for things that meet conditions."""
        found = self.conditions(part)
        if not found.clauses:
            raise Unspeakable
        if found.group:
            return f"the one of {found.group}", f"that {joined(found.clauses)}"
        noun = found.noun
        if not noun:
            raise Unspeakable
        role = _AS_ROLE.fullmatch(found.clauses[0].rest) if len(found.clauses) == 1 else None
        if role is not None:
            be = BE.finite(past=found.clauses[0].past, plural=False)
            return f"the {noun}", f"whose {role['role']} {be} {role['value']}"
        if len(found.clauses) == 1 and found.clauses[0].reduced:
            return f"the {noun}", found.clauses[0].reduced
        return f"the {noun}", f"{'who' if is_person(noun) else 'that'} {joined(found.clauses)}"

    def _best(self, part: Expression) -> str:
        clause = self.extreme(part)
        group = self.group(part.inputs)
        among = group or series([self.thing(each) for each in self.items(part.inputs)])
        if clause.verb is BE and clause.rest.startswith("the "):
            return f"{clause.rest} of {among}"
        if not group and part.inputs and clause.verb is BE and " " not in clause.rest:
            return f"the {clause.rest} of {among}"
        return f"the one of {among} {clause.reduced or f'that {clause.said()}'}"

    def things(self, part: Expression | str) -> str:
        """Return a phrase for several things."""
        if isinstance(part, Expression) and part.operator is Operator.MEMBERS:
            return self._set(part)
        if isinstance(part, Expression) and part.operator is Operator.OR:
            return series([self.thing(each) for each in self.items(part.inputs)])
        if isinstance(part, Expression) and part.operator in _SETS:
            found = self.conditions(part)
            if not found.clauses:
                raise Unspeakable
            head = f"those of {found.group}" if found.group else f"the {plural_of(found.noun)}"
            return f"{head} that {joined(found.clauses, plural=True)}"
        return self.thing(part)

    def _set(self, part: Expression) -> str:
        description = part.inputs[0] if part.inputs else ""
        if not isinstance(description, str) or not description:
            raise Unspeakable
        return description if description.lower().startswith("the ") else f"the {description}"

    # Conditions

    def conditions(self, part: Expression | str) -> Conditions:
        """Return the conditions that a set of things meets."""
        if isinstance(part, str):
            raise Unspeakable
        noun = self.nouns.get(part, "")
        match part.operator:
            case Operator.MEMBERS:
                return Conditions((), self._set(part))
            case Operator.FIND:
                return self._found(part, noun)
            case Operator.FOLLOW:
                return self._role_of(part)
            case Operator.WHERE:
                inner = self.conditions(part.inputs[0])
                clause, own = self._bounded(part)
                return Conditions((*inner.clauses, clause), inner.group, noun or inner.noun or own)
            case Operator.AND:
                parts = [self.conditions(each) for each in part.inputs]
                groups = [each.group for each in parts if each.group]
                if len(groups) > 1:
                    raise Unspeakable
                nouns = [each.noun for each in parts if each.noun]
                clauses = tuple(clause for each in parts for clause in each.clauses)
                return Conditions(clauses, "".join(groups), noun or (nouns[0] if nouns else ""))
            case _:
                raise Unspeakable

    def _found(self, part: Expression, noun: str) -> Conditions:
        value = part.inputs[0]
        if part.relation == "kind" and isinstance(value, str):
            return Conditions((), noun=value)
        words = words_of(part.relation)
        if not words.value:
            raise Unspeakable
        said = self.thing(value)
        if words.counted:
            said = said.removesuffix(f" {words.unit}")
        return Conditions((self.clause(words, words.value, said, part.relation),), noun=noun or words.noun)

    def _role_of(self, part: Expression) -> Conditions:
        words = words_of(part.relation)
        owner = self.thing(part.inputs[0])
        noun = "person" if words.asks.startswith("Who") else ""
        if words.asks.startswith("Who ") and "{is}" not in words.asks:
            done = words.asks.removeprefix("Who ").split(" ")[0]
            return Conditions((Clause(Verb(done, done, done), owner, True),), noun=noun)
        past = self.past(words, part.relation)
        return Conditions((Clause(BE, f"the {part.relation} of {owner}", past),), noun=noun)

    def _bounded(self, part: Expression) -> tuple[Clause, str]:
        bounds = part.inputs[1:]
        if part.comparison is Comparison.WITHIN and len(bounds) == 2:
            bounds = (_period(*bounds),)
        if len(bounds) != 1:
            raise Unspeakable
        bound = bounds[0]
        if not isinstance(bound, str):
            if part.comparison is not Comparison.EQUAL:
                raise Unspeakable
            bound = self.thing(bound)
        words = words_of(part.relation)
        pattern = {
            Comparison.LESS: words.less,
            Comparison.MORE: words.more,
            Comparison.EQUAL: words.value,
            Comparison.WITHIN: words.value if words.event else "",
        }[part.comparison]
        if not pattern:
            raise Unspeakable
        said = self.name(bound)
        if _PERIOD.fullmatch(bound) and not bound.startswith("the "):
            said = f"the {bound}"
        if words.counted:
            said = said.removesuffix(f" {words.unit}")
        return self.clause(words, pattern, said, part.relation), words.noun

    def clause(self, words: RelationWords, pattern: str, value: str, relation: str) -> Clause:
        article = "an" if (relation + value)[0] in "aeio" else "a"
        if pattern.startswith("{a} {v}"):
            article = "an" if value[0] in "aeio" else "a"
        rest = pattern.removeprefix("+").format(
            v=value, e=value, a=article, its="its", at="at" if _YARD.search(value) else "in"
        )
        verb = BE if pattern.startswith("+") else words.verb
        return Clause(verb, rest, self.past(words, relation))

    def past(self, words: RelationWords, relation: str) -> bool:
        """Return the tense of the facts that state a relation, or its usual tense."""
        if words.event or self._timed:
            return True
        for fact in self._facts:
            if words.unit and words.unit in fact and (before := _BEFORE_NUMBER.search(fact)):
                verb = before[1].lower()
                return verb == "was" or not (verb.endswith("s") or verb in {"are", "have"})
            if not words.unit and relation in fact:
                verbs = re.findall(r"\b(is|are|was|were)\b", fact)
                if verbs:
                    return verbs[0] in {"was", "were"}
        return words.past

    def extreme(self, part: Expression) -> Clause:
        words = words_of(part.relation)
        pair = not self.group(part.inputs) and len(self.items(part.inputs)) == 2
        greatest = part.operator is Operator.GREATEST
        pattern = (
            (words.greater if greatest else words.lesser) if pair else words.most if greatest else words.least
        )
        if not pattern:
            raise Unspeakable
        return self.clause(words, pattern, "x", part.relation)

    def group(self, inputs: Sequence[Expression | str]) -> str:
        """Return the phrase of a closed set, or of its members that meet conditions; empty for named things."""
        if len(inputs) != 1 or isinstance(inputs[0], str):
            return ""
        if inputs[0].operator is Operator.MEMBERS:
            return self._set(inputs[0])
        if inputs[0].operator in {Operator.WHERE, Operator.AND, Operator.FIND}:
            return self.things(inputs[0])
        return ""

    def items(self, inputs: Sequence[Expression | str]) -> list[Expression | str]:
        found: list[Expression | str] = []
        for each in inputs:
            if isinstance(each, Expression) and each.operator is Operator.OR:
                found.extend(self.items(each.inputs))
            else:
                found.append(each)
        return found

    def split(self, part: Expression) -> tuple[str, str] | None:
        """Return noun and relative clause of a phrase that has one."""
        if part.operator in {Operator.FIND, Operator.AND, Operator.WHERE}:
            return self._described(part)
        if part.operator is Operator.FOLLOW and (site := site_of(part.relation)) is not None:
            done, piece = site
            owner = self.thing(part.inputs[0])
            if RELATIVE.search(owner):
                return None
            noun = self.nouns.get(part, "")
            if part.relation == "place of construction" and noun.endswith("yard"):
                return f"the {noun}", f"that built {owner}"
            owner = f"the {piece} of {owner}" if piece else owner
            plural = piece.endswith("s") or (not piece and is_plural(owner))
            be = BE.finite(past=done in _PAST_SITES, plural=plural)
            return f"the {self.nouns.get(part) or 'place'}", f"where {owner} {be} {done}"
        if part.operator in {Operator.GREATEST, Operator.LEAST} and not self.front:
            clause = self.extreme(part)
            group = self.group(part.inputs)
            if group and not (clause.verb is BE and clause.rest.startswith("the ")):
                self.front = group
                if clause.verb is HAVE:
                    return f"the one with {clause.rest}", ""
                return "the one", clause.reduced or f"that {clause.said()}"
        return None


def joined(clauses: Sequence[Clause], *, plural: bool = False) -> str:
    """Join clauses; one that starts with the verb of the one before drops it: `was born in Alba in 1204`."""
    said: list[str] = []
    last = done = ""
    for clause in clauses:
        verb = clause.verb.finite(past=clause.past, plural=plural)
        start, _, rest = clause.rest.partition(" ")
        if verb == last and start == done and clause.verb is BE and rest:
            # The short part comes first: `born after 1600 in the town where …`.
            before, _, old = said[-1].partition(f"{done} ")
            long = RELATIVE.search(old) is not None or _DONE.search(old) is not None
            said[-1] = f"{before}{done} {rest} {old}" if long else f"{said[-1]} {rest}"
        else:
            said.append(clause.rest if verb == last else f"{verb} {clause.rest}".strip())
        last, done = verb, start
    return series(said)


def _period(first: Expression | str, last: Expression | str) -> str:
    """Return a range of years in words: `the 1830s`, `the 19th century`."""
    if not isinstance(first, str) or not isinstance(last, str) or not (first.isdigit() and last.isdigit()):
        raise Unspeakable
    start, end = int(first), int(last)
    if end == start + 9 and start % 10 == 0:
        return f"the {start}s"
    if end == start + 99 and start % 100 in {0, 1}:
        number = start // 100 + 1
        suffix = "th" if number // 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"the {number}{suffix} century"
    raise Unspeakable


def merged(parts: Sequence[Expression | str], writer: PhraseWriter) -> str:
    """Join phrases for things; those with one relation share it: `the main towns of Ossel and Quillan`."""
    phrases = [writer.thing(each) for each in parts]
    relations = {each.relation if isinstance(each, Expression) else "" for each in parts}
    relation = relations.pop() if len(relations) == 1 else ""
    leads = [phrase.removeprefix(f"the {relation} of ") for phrase in phrases]
    if (
        len(parts) < 2
        or not relation
        or " of " in relation
        or leads == phrases
        or any(RELATIVE.search(lead) or " and " in lead for lead in leads)
        or any(lead == phrase for lead, phrase in zip(leads, phrases, strict=True))
    ):
        return series(phrases)
    return f"the {plural_of(relation)} of {series(leads)}"


def series(parts: Sequence[str], link: str = "and") -> str:
    return f" {link} ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def is_person(noun: str) -> bool:
    return noun == "person" or noun.rpartition(" ")[2] in PERSONS
