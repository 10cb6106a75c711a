"""Parser of the noun phrases and clauses of questions, for known relations and sets only."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from agentflow.facts import KIND, Comparison, Operator
from agentflow.offline._expressions import Expression
from agentflow.offline._relations import BE, RelationWords, Verb, cues_of, site_of, words_of
from agentflow.offline._words import DONE, plural_of

_START = re.compile(r"(?:How|Which|Who|What|Where|When|In|By|After|Was|Were|Is|Are|Did|Do|Does|For|Of)\b")
_NAME = re.compile(r"(?:[Tt]he )?(?P<name>(?:[^\W\d_a-z]|\d)[^?]*)")
_NOT_NAME = re.compile(
    r" (?:that|who|which|whose|where|was|were|is|are|did|does|do|and|or|than|before|after)\b|, | in \d{3,4}$"
)
_NOUN = r"[a-z](?:(?! (?:of|that|who|which|whose|where) )[a-z'’\- ])*"
_LONGEST_NAME = 10
_GENERIC = frozenset({"one", "people", "person", "place", "ship", "thing"})
"""Nouns that are no condition."""
_PERIOD = re.compile(r"(?:the )?(?P<period>\d{3,4}s|\d{1,2}(?:st|nd|rd|th) century)", re.IGNORECASE)
YEAR = re.compile(r"\d{3,4}")
_NUMBER = re.compile(r"(?:the )?[\d,.]+(?:s|th century)?")
UNIT = "unit"
ANY_UNIT = r"[a-z%][\w ]*?"
_LONGEST = 600
"""Characters of the longest question that is read."""
OF = r"(?:that|who|which)"


class ParsedClause(NamedTuple):
    """A condition, or a superlative if the comparison is an operator."""

    relation: str
    kind: Comparison | Operator
    value: Expression | str = ""
    last: str = ""
    """End of a range."""
    follows: bool = False
    """The relation leads from the value to the thing: `was the captain of the Grey Petrel`."""


@lru_cache(maxsize=4096)
def regex(text: str) -> re.Pattern[str]:
    return re.compile(text)


def slot_regex(pattern: str, slot: str) -> str:
    """Return a pattern of a text with one slot."""
    escaped = re.escape(pattern.removeprefix("+"))
    for mark, meant in (("v", "(?P<v>.+)"), ("e", "(?P<v>.+)"), ("a", "an?"), ("its", "(?:its|their)")):
        escaped = escaped.replace(re.escape(f"{{{mark}}}"), meant)
    escaped = escaped.replace(re.escape("{at}"), "(?:in|at)").replace(
        re.escape("{is}"), "(?:is|are|was|were)"
    )
    return escaped.replace(slot, ANY_UNIT) if slot else escaped


class KnownRelation(NamedTuple):
    relation: str
    words: RelationWords


@lru_cache(maxsize=256)
def known_relations(relations: tuple[str, ...]) -> tuple[KnownRelation, ...]:
    """Return the words of relations, the longest first."""
    ordered = sorted(
        relations, key=lambda relation: (-len(relation), relation.startswith("date of "), relation)
    )
    return tuple(KnownRelation(relation, words_of(relation, UNIT)) for relation in ordered)


class PhraseParser:
    """Parser of phrases about some relations and sets."""

    def __init__(self, relations: tuple[str, ...], sets: tuple[str, ...], text: str) -> None:
        """Parse phrases of a text with some of these relations."""
        words = re.findall(r"[a-z]{3,}", text.lower())
        asked = frozenset([*words, *(word.removesuffix("s") for word in words)])
        self.known = tuple(
            each
            for each in known_relations(relations)
            if not (cues := cues_of(each.relation)) or not cues.isdisjoint(asked)
        )
        self.relations = frozenset(relations)
        self.front: Expression | None = None
        self._seen: dict[str, Expression | str | None] = {}
        self._seen_clauses: dict[str, list[ParsedClause] | None] = {}
        self.sets = {each.lower().removeprefix("the "): each for each in sets}

    def thing(self, text: str) -> Expression | str | None:
        """Parse a phrase for one thing."""
        text = text.strip()
        if text not in self._seen:
            self._seen[text] = self._thing(text)
        return self._seen[text]

    def _thing(self, text: str) -> Expression | str | None:
        return self.related(text) or self._best(text) or self._described(text) or name_in(text)

    def related(self, text: str) -> Expression | None:
        if not text.startswith("the "):
            return None
        for relation, _ in self.known:
            if (site := site_of(relation)) is not None:
                done, part = site
                owner = f"the {part} of (?P<e>.+)" if part else "(?P<e>.+)"
                if relation == "place of construction":
                    yard = regex(rf"the {_NOUN}yard that built (?P<e>.+)").fullmatch(text)
                    if yard is not None:
                        return self.follow(yard["e"], relation)
                place = regex(rf"the {_NOUN} where {owner} (?:is|are|was|were) {done}").fullmatch(text)
                if place is not None:
                    return self.follow(place["e"], relation)
            lead = f"the {relation} of "
            if text.startswith(lead) and (found := self.follow(text[len(lead) :], relation)) is not None:
                return found
        return None

    def follow(self, owner: str, relation: str) -> Expression | None:
        subject = self.thing(owner)
        return None if subject is None else Expression(Operator.FOLLOW, (subject,), relation)

    def _best(self, text: str) -> Expression | None:
        """Parse `the tallest of the four lighthouses`, `the one of A and B that was built earlier`."""
        one = regex(rf"the one of (?P<group>.+?) {OF} (?P<clause>.+)").fullmatch(text)
        if one is not None and (things := self.things(one["group"])) is not None:
            return self.limited(things, one["clause"])
        one = regex(rf"the one of (?P<group>.+?) (?P<clause>{DONE} (?:first|last|earlier|later))").fullmatch(
            text
        )
        if one is not None and (things := self.things(one["group"])) is not None:
            return self.limited(things, f"was {one['clause']}")
        for relation, words in self.known:
            for operator, pattern in _extremes(words):
                lead = f"the {pattern.removeprefix('+').removeprefix('the ')} of "
                if pattern and text.startswith(lead):
                    things = self.things(text[len(lead) :])
                    if things is not None:
                        return Expression(operator, things, relation)
        return None

    def _described(self, text: str) -> Expression | None:
        whose = regex(
            rf"the {_NOUN} whose (?P<role>[a-z'’\- ]+?) (?:is|are|was|were) (?P<value>.+)"
        ).fullmatch(text)
        if whose is not None and whose["role"] in self.relations:
            value = self.thing(whose["value"])
            return None if value is None else Expression(Operator.FIND, (value,), whose["role"])
        best = regex(r"the one with (?P<rest>.+)").fullmatch(text)
        if best is not None and self.front is not None:
            return self.limited((self.front,), f"has {best['rest']}")
        found = regex(rf"the (?P<noun>{_NOUN}) {OF} (?P<clause>.+)").fullmatch(text)
        if found is None:
            return self._reduced(text)
        base = self.front if found["noun"] == "one" else None
        return self.limited(() if base is None else (base,), found["clause"], found["noun"])

    def _reduced(self, text: str) -> Expression | None:
        """Parse `the ship launched in 1711`, `the one founded first`."""
        found = regex(
            rf"the (?P<noun>{_NOUN}?) (?P<clause>{DONE} (?:by|in|at|before|after|first|last|earlier|later)\b.*)"
        ).fullmatch(text)
        if found is None:
            return None
        base = self.front if found["noun"] == "one" else None
        return self.limited(() if base is None else (base,), f"was {found['clause']}", found["noun"])

    def limited(self, things: tuple[Expression | str, ...], text: str, noun: str = "") -> Expression | None:
        """Apply conditions, or a superlative, to things; without things there must be a condition that finds them."""
        clauses = self.clauses(text)
        if clauses is None:
            return None
        if isinstance(clauses[0].kind, Operator):
            return (
                Expression(clauses[0].kind, things, clauses[0].relation)
                if len(clauses) == 1 and things
                else None
            )
        if noun and noun not in _GENERIC and KIND in self.relations:
            clauses = [ParsedClause(KIND, Comparison.EQUAL, noun), *clauses]
        return self._meeting(things, clauses)

    def _meeting(
        self, things: tuple[Expression | str, ...], clauses: Sequence[ParsedClause]
    ) -> Expression | None:
        found: list[Expression] = []
        if things:
            (first, *others) = things
            found.append(
                first if isinstance(first, Expression) and not others else Expression(Operator.OR, things)
            )
        bounds: list[ParsedClause] = []
        for clause in clauses:
            if isinstance(clause.kind, Operator):
                return None
            if clause.follows:
                found.append(Expression(Operator.FOLLOW, (clause.value,), clause.relation))
            elif clause.kind is Comparison.EQUAL:
                found.append(Expression(Operator.FIND, (clause.value,), clause.relation))
            else:
                bounds.append(clause)
        if not found:
            return None
        whole = found[0] if len(found) == 1 else Expression(Operator.AND, tuple(found))
        for clause in bounds:
            assert isinstance(clause.kind, Comparison)
            values = (clause.value, clause.last) if clause.last else (clause.value,)
            whole = Expression(Operator.WHERE, (whole, *values), clause.relation, clause.kind)
        return whole

    def things(self, text: str) -> tuple[Expression | str, ...] | None:
        """Parse a closed set, its members that meet conditions, or several named things."""
        if (group := self.group(text)) is not None:
            return (group,)
        those = regex(rf"those of (?P<group>.+?) {OF} (?P<clause>.+)").fullmatch(text)
        if those is not None and (base := self.group(those["group"])) is not None:
            found = self.limited((base,), those["clause"])
            return None if found is None else (found,)
        return self.several(text, "and")

    def group(self, text: str) -> Expression | None:
        description = self.sets.get(text.lower().removeprefix("the "))
        return None if description is None else Expression(Operator.MEMBERS, (description,))

    def several(self, text: str, link: str) -> tuple[Expression | str, ...] | None:
        """Parse `A and B`, `A, B and C`, `the owners of A and B`."""
        for relation, _ in self.known:
            lead = f"the {plural_of(relation)} of "
            if link == "and" and text.startswith(lead):
                owners = self.several(text[len(lead) :], link)
                if owners is not None:
                    return tuple(Expression(Operator.FOLLOW, (owner,), relation) for owner in owners)
        for split in regex(rf" {link} ").finditer(text):
            last = self.thing(text[split.end() :])
            if last is None:
                continue
            firsts = [self.thing(each) for each in text[: split.start()].split(", ")]
            found = [each for each in firsts if each is not None]
            if len(found) == len(firsts):
                return (*found, last)
        return None

    def clauses(self, text: str) -> list[ParsedClause] | None:
        """Parse one or more clauses after a subject."""
        if text not in self._seen_clauses:
            self._seen_clauses[text] = self._clauses(text)
        return self._seen_clauses[text]

    def _clauses(self, text: str) -> list[ParsedClause] | None:
        if (clause := self.clause(text)) is not None:
            return [clause]
        for split in regex(r" and |, ").finditer(text):
            left, right = self.clauses(text[: split.start()]), text[split.end() :]
            if left is None:
                continue
            verb = text.split(" ", 1)[0]
            for rest in (right, f"{verb} {right}"):
                if (clauses := self.clauses(rest)) is not None:
                    return [*left, *clauses]
        words = text.split(" ", 2)
        for split in regex(r" (?=in |before |after |by )").finditer(text) if len(words) > 2 else ():
            first = self.clause(text[: split.start()])
            second = (
                self.clauses(f"{words[0]} {words[1]} {text[split.end() :]}") if first is not None else None
            )
            if first is not None and second is not None:
                return [first, *second]
        return None

    def clause(self, text: str) -> ParsedClause | None:
        for relation, words in self.known:
            for operator, pattern in _extremes(words):
                if pattern and _matches(verb_of(words, pattern), pattern, text):
                    return ParsedClause(relation, operator)
        for relation, words in self.known:
            if (found := self._bounded(relation, words, text)) is not None:
                return found
        for relation, words in self.known:
            if (owner := _owner(relation, words, text)) and (subject := self.thing(owner)) is not None:
                return ParsedClause(relation, Comparison.EQUAL, subject, follows=True)
        return None

    def _bounded(self, relation: str, words: RelationWords, text: str) -> ParsedClause | None:
        bounds = (
            (Comparison.LESS, words.less),
            (Comparison.MORE, words.more),
            (Comparison.EQUAL, words.value),
        )
        for comparison, pattern in bounds:
            if not pattern:
                continue
            found = regex(rf"{verb_of(words, pattern).any_finite} {slot_regex(pattern, UNIT)}").fullmatch(
                text
            )
            if found is None:
                continue
            if words.event:
                if comparison is Comparison.EQUAL and (years := _years(found["v"])) is not None:
                    return ParsedClause(relation, Comparison.WITHIN, years[0], last=years[1])
                if YEAR.fullmatch(found["v"]):
                    return ParsedClause(relation, comparison, found["v"])
                continue
            if comparison is not Comparison.EQUAL or words.numeric:
                if found["v"][:1].isdigit():
                    unit = words.unit if words.unit != UNIT else ""
                    return ParsedClause(relation, comparison, f"{found['v']} {unit}".strip())
                continue
            if relation == "kind":
                return ParsedClause(relation, comparison, found["v"]) if found["v"].islower() else None
            if not _NUMBER.fullmatch(found["v"]) and (value := self.thing(found["v"])) is not None:
                return ParsedClause(relation, comparison, value)
        return None


def name_in(text: str) -> str | None:
    """Return a name, a number or a date; `None` for other words."""
    found = _NAME.fullmatch(text)
    if found is None or _NOT_NAME.search(text) or len(text.split()) > _LONGEST_NAME:
        return None
    return found["name"]


def _years(text: str) -> tuple[str, str] | None:
    """Return first and last year of a decade or century."""
    found = _PERIOD.fullmatch(text)
    if found is None:
        return None
    number = int(re.sub(r"\D", "", found["period"]))
    if "century" in found["period"].lower():
        return str(number * 100 - 100), str(number * 100 - 1)
    return str(number), str(number + 9)


def lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _extremes(words: RelationWords) -> Iterator[tuple[Operator, str]]:
    yield Operator.GREATEST, words.most
    yield Operator.GREATEST, words.greater
    yield Operator.LEAST, words.least
    yield Operator.LEAST, words.lesser


def verb_of(words: RelationWords, pattern: str) -> Verb:
    return BE if pattern.startswith("+") else words.verb


def _matches(verb: Verb, pattern: str, text: str) -> bool:
    return regex(rf"{verb.any_finite} {slot_regex(pattern, '')}").fullmatch(text) is not None


def _owner(relation: str, words: RelationWords, text: str) -> str:
    """Return E in `was the captain of E`, `founded E`; empty for other words."""
    found = regex(rf"(?:is|are|was|were) the {re.escape(relation)} of (?P<e>.+)").fullmatch(text)
    if found is None and words.asks.startswith("Who ") and "{is}" not in words.asks:
        done = words.asks.removeprefix("Who ").removesuffix(" {e}?")
        found = regex(rf"{re.escape(done)} (?P<e>.+)").fullmatch(text)
    return "" if found is None else found["e"]


def asked_regex(words: RelationWords, pattern: str) -> re.Pattern[str]:
    """Return the pattern of a clause as a question, with subject and value."""
    verb = verb_of(words, pattern)
    infinitive = f" {verb.infinitive}" if verb.infinitive else ""
    return regex(rf"{verb.any_auxiliary} (?P<s>.+?){infinitive} {slot_regex(pattern, UNIT)}")


def splits(text: str, link: str) -> Iterator[tuple[str, str]]:
    """Yield every split of a text at a link."""
    for split in re.finditer(link, text):
        yield text[: split.start()], text[split.end() :]
