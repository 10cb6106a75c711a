"""Facts of a text, found by a small set of patterns of English sentences."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from agentflow.offline._language import NAME, NUMBER, TopicPassage, bare, passages
from agentflow.offline._words import AGENTS, DONE, KINDS, MAKERS, PERSONS, VERBS, past_of, stem_of

SLOT = "\0"
"""Placeholder of the other thing in a question or a description."""

_THING = rf"(?P<article>[Tt]he )?(?P<name>{NAME})"
_AFTER = r"(?=[,.;:!?]|$| (?:who|which|whose|where|when|and|from|in|at|for|with|after|to|on|by|near|as|that|until)\b)"
_END = r"(?=[,.;:!?]|$| (?:who|which|whose|where|when|and)\b)"
_ROLE = r"(?P<role>[a-z][a-z'’\-]*(?: [a-z'’\-]+){0,3})"
_BE = r"(?:was|were|is|are)"

_SUBJECT = re.compile(
    rf"(?:(?P<pronoun>It|She|He|They)|(?P<owner>Its|Her|His|Their|The) (?P<part>[a-z'’\-]+(?: [a-z'’\-]+){{0,2}}?)(?: itself)?"
    rf"|{_THING}) (?=(?:{'|'.join(sorted({*VERBS, *MAKERS}))})\b)"
)
_ROLE_OF = re.compile(
    rf"The {_ROLE} of {_THING} (?P<be>{_BE}) (?P<the>the )?(?:(?<=the )[a-z]+ )?(?P<value>{NAME}){_END}"
)
_PASSIVE = re.compile(rf"(?:^| and )(?P<be>{_BE}) (?P<verb>(?:first )?{DONE})\b")
_IN_YEAR = re.compile(r"(?P<between>^(?: [a-z]+){0,3}?)? in (?P<year>[12]\d{3})\b(?! [a-z]+s\b)")
_BY = re.compile(rf" by {_THING}{_AFTER}")
_PLACE = re.compile(rf" (?P<where>in|at) {_THING}{_AFTER}")
_NAMESAKE = re.compile(rf" after {_THING}{_AFTER}")
_IS_ROLE = re.compile(rf"(?P<be>{_BE}) the {_ROLE} of {_THING}{_END}")
_IS_NAME = re.compile(rf"(?P<be>{_BE}) (?P<value>{NAME}){_END}")
_IS_A = re.compile(
    rf"{_BE} (?:an?|the) (?:[a-z\-]+, )*(?P<class>[a-z][a-z'’\- ]*?)"
    r"(?=[,.;]| (?:of|in|on|at|for|to|with|and|that|which|who|between|near|from|over|by|around|across)\b)"
)
_DID = re.compile(rf"(?P<verb>{'|'.join(sorted(MAKERS))}) {_THING}{_AFTER}")
_DID_IN = re.compile(r"(?P<verb>[a-z]+) in (?P<year>[12]\d{3})\b")
_MANY = re.compile(
    rf"(?P<verb>[a-z]+) (?P<link>for )?(?P<number>{NUMBER}) (?P<unit>[a-z][a-z\-]+(?: [a-z\-]+){{0,2}}?)"
    r"(?=[,.;:]|$| (?:and|in|on|at|for|from|to|over|that|which|who|where|when|between|without|with|by|along|"
    r"tall|high|long|wide|deep|old|(?:north|south)(?:-east|-west)?|east|west|tied|before|after|until|a|an|"
    r"under|around|are|is|has|have|not|up)\b)"
)
_DIRECTION = re.compile(rf" (?P<way>(?:north|south)(?:-(?:east|west))?|east|west) of {_THING}{_AFTER}")
_ADJECTIVE = re.compile(r" (?P<adjective>tall|high|long|wide|deep|old)\b")
_CUT = re.compile(r"[;:,]| (?:who|which|whose|where|when|while|because|although|until|before)\b")


class Fact(NamedTuple):
    """A statement of a sentence about its subject."""

    subject: str
    """Subject, without an article."""
    shown: str
    """The subject as written in the middle of a sentence: `the Grey Petrel`."""
    value: str
    """Value: a number, a year, or a name without an article."""
    sentence: str
    """The sentence, verbatim."""
    naming: str
    """An earlier sentence that names the subject if this one says only `it`; else empty."""
    ask: str
    """Question that the value answers, with a slot for the subject."""
    described: str = ""
    """The value as a phrase with a slot for the subject: `the captain of …`; empty if it is not a name."""
    inverse: str = ""
    """The subject as a clause with a slot for the value: `that was built at …`; empty if it would read badly."""
    value_shown: str = ""
    """The value as written in the middle of a sentence."""
    event: str = ""
    """Event in the year that is the value, with a slot for the subject; empty if the value is not a year."""

    @property
    def question(self) -> str:
        """The question about the subject."""
        return self.ask.replace(SLOT, self.shown)

    @property
    def event_shown(self) -> str:
        """The event of the subject, for example `Port Vannick was founded`."""
        return self.event.replace(SLOT, self.shown)


class Reading(NamedTuple):
    """Facts of a text."""

    facts: tuple[Fact, ...]
    classes: dict[str, str]
    """Classes of things: `Grey Petrel` -> `survey ship`."""
    introductions: dict[str, str]
    """The sentences that state these classes."""


class _Subject(NamedTuple):
    name: str
    shown: str
    part: str = ""
    """Part that the facts are about, such as `tower`; empty for the thing itself."""
    naming: str = ""

    @property
    def slot(self) -> str:
        return f"the {self.part} of {SLOT}" if self.part else SLOT


@lru_cache(maxsize=512)
def read(text: str) -> Reading:
    """Return everything that the patterns find in a text."""
    whole = Reading((), {}, {})
    found: list[Fact] = []
    for passage in passages(text):
        part = _read(passage)
        found.extend(part.facts)
        for name, class_ in part.classes.items():
            whole.classes.setdefault(name, class_)
            whole.introductions.setdefault(name, part.introductions[name])
    return whole._replace(facts=tuple(found))


@lru_cache(maxsize=2048)
def _read(passage: TopicPassage) -> Reading:
    """Read one passage; cached, because the same one is in many observations."""
    reading = Reading((), {}, {})
    return reading._replace(facts=tuple(_passage(passage, reading)))


def _passage(passage: TopicPassage, reading: Reading) -> Iterator[Fact]:
    topic = bare(passage.topic)
    shown = topic
    naming = ""
    clear = False
    for sentence in passage.sentences:
        if not sentence.endswith((".", "!", '."', ".”")):
            continue
        role = _ROLE_OF.match(sentence)
        if role is not None:
            yield _role_fact(role, sentence)
            continue
        match = _SUBJECT.match(sentence)
        if match is None:
            clear = False
            continue
        predicate = sentence[match.end() :]
        if match["name"]:
            name = bare(match["name"])
            said = _said(match, name)
            if name != topic and " " not in name and passage.topic:
                # A common word at the start of a sentence looks like a name.
                clear = False
                continue
            if not topic or name == topic or not naming:
                topic, shown, naming = name, said, sentence
            clear = name == topic
            yield from _predicate(_Subject(name, said), predicate, sentence, reading)
        elif naming and (clear or match["owner"]):
            subject = _referred(match, topic, shown, naming, reading.classes.get(topic, ""))
            clear = clear and not subject.part
            yield from _predicate(subject, predicate, sentence, reading)


def _said(match: re.Match[str], name: str) -> str:
    """Return a subject as written in the middle of a sentence."""
    first = match["name"].split(" ")[0]
    if first in {"A", "An"} and first != name:
        return f"{first.lower()} {name}"
    return f"the {name}" if match["article"] or first in {"The", "Its", "Her", "His", "Their"} else name


def _referred(match: re.Match[str], topic: str, shown: str, naming: str, class_: str) -> _Subject:
    """Resolve `It`, `Her bell` or `The tower` in a passage about the topic."""
    part = match["part"]
    same = part in KINDS or class_.endswith(part or " ") or topic.lower().endswith(f" {part}")
    itself = match["owner"] == "The" and same
    return _Subject(topic, shown, "" if match["pronoun"] or itself else part, naming)


def _role_fact(match: re.Match[str], sentence: str) -> Fact:
    subject = bare(match["name"])
    shown = f"the {subject}" if match["article"] else subject
    value = bare(match["value"])
    fact = _role(subject, shown, match["role"], match["be"], value, sentence, "")
    # `the Salt Widow`, but `the sailor Anselm Grote` is Anselm Grote.
    return fact._replace(value_shown=f"the {value}") if f"the {match['value']}" in sentence else fact


def _role(subject: str, shown: str, role: str, be: str, value: str, sentence: str, naming: str) -> Fact:
    who = "Who" if role.split()[-1] in PERSONS else "What"
    described = f"the {role} of {SLOT}"
    return Fact(
        subject, shown, value, sentence, naming, f"{who} {be} {described}?", described, value_shown=value
    )


def _predicate(subject: _Subject, predicate: str, sentence: str, reading: Reading) -> Iterator[Fact]:
    """Yield the facts in the rest of a sentence."""
    is_a = _IS_A.match(predicate)
    if is_a is not None and not subject.part:
        class_ = is_a["class"].strip()
        kind = class_ if is_a[0].split(" ")[1] != "the" else class_.split(" ")[-1]
        reading.classes.setdefault(subject.name, kind)
        reading.introductions.setdefault(subject.name, sentence)
    yield from _passive(subject, predicate, sentence)
    yield from _copula(subject, predicate, sentence)
    yield from _active(subject, predicate, sentence)
    yield from _quantity(subject, predicate, sentence)


def _passive(subject: _Subject, predicate: str, sentence: str) -> Iterator[Fact]:
    """Read `was founded in 1204 by Bram Oster and was rebuilt in 1300`."""
    clauses = list(_PASSIVE.finditer(predicate))
    if not clauses or clauses[0].start() > 0:
        return
    for number, clause in enumerate(clauses):
        end = clauses[number + 1].start() if number + 1 < len(clauses) else len(predicate)
        rest = predicate[clause.end() : end]
        cut = _CUT.search(rest)
        rest = rest[: cut.start()] if cut else rest.rstrip(".!")
        if " and " in rest:
            rest = rest[: rest.index(" and ")]
        yield from _clause(subject, clause["be"], clause["verb"], rest, sentence)


def _clause(subject: _Subject, be: str, verb: str, rest: str, sentence: str) -> Iterator[Fact]:
    slot = subject.slot
    if year := _IN_YEAR.search(rest):
        done = f"{verb}{year['between'] or ''}"
        ask, event = f"In which year {be} {slot} {done}?", f"{slot} {be} {done}"
        yield Fact(subject.name, subject.shown, year["year"], sentence, subject.naming, ask, event=event)
    if by := _BY.search(rest):
        agent = AGENTS.get(verb)
        ask = f"Who {past_of(verb)} {slot}?" if agent else f"By whom or what {be} {slot} {verb}?"
        described = f"the {agent} of {slot}" if agent else ""
        yield _linked(subject, by, sentence, ask, described, f"that {be} {verb} by {SLOT}")
    if verb == "named" and (after := _NAMESAKE.search(rest)):
        ask = f"After whom or what {be} {slot} named?"
        yield _linked(
            subject, after, sentence, ask, f"the namesake of {slot}", f"that {be} named after {SLOT}"
        )
    elif place := _PLACE.search(rest):
        ask = f"Where {be} {slot} {verb}?"
        inverse = "" if verb == "born" else f"that {be} {verb} {place['where']} {SLOT}"
        yield _linked(subject, place, sentence, ask, f"the place where {slot} {be} {verb}", inverse)


def _linked(
    subject: _Subject, thing: re.Match[str], sentence: str, ask: str, described: str, inverse: str
) -> Fact:
    value = bare(thing["name"])
    value_shown = f"the {value}" if thing["article"] else value
    if subject.part:
        inverse = ""
    return Fact(
        subject.name, subject.shown, value, sentence, subject.naming, ask, described, inverse, value_shown
    )


def _copula(subject: _Subject, predicate: str, sentence: str) -> Iterator[Fact]:
    """Read `was the captain of the Grey Petrel`; of a part, `was Ilsa Venn`."""
    role = _IS_ROLE.match(predicate)
    if role is not None and not subject.part and " and " not in role["role"]:
        other = bare(role["name"])
        shown = f"the {other}" if role["article"] else other
        fact = _role(other, shown, role["role"], role["be"], subject.name, sentence, subject.naming)
        yield fact._replace(value_shown=subject.shown)
    value = _IS_NAME.match(predicate)
    if value is not None and subject.part and not subject.part.startswith("nearest"):
        name = bare(value["value"])
        yield _role(subject.name, subject.shown, subject.part, value["be"], name, sentence, subject.naming)


def _active(subject: _Subject, predicate: str, sentence: str) -> Iterator[Fact]:
    """Read `founded Port Vannick`, `died in 1239`."""
    if subject.part:
        return
    did = _DID.match(predicate)
    if did is not None:
        other = bare(did["name"])
        shown = f"the {other}" if did["article"] else other
        described = f"the {MAKERS[did['verb']]} of {SLOT}"
        ask = f"Who {did['verb']} {SLOT}?"
        yield Fact(
            other, shown, subject.name, sentence, subject.naming, ask, described, value_shown=subject.shown
        )
    when = _DID_IN.match(predicate)
    if when is not None and (stem := stem_of(when["verb"])):
        ask = f"In which year {stem[0]} {SLOT} {stem[1]}?"
        event = f"{SLOT} {when['verb']}"
        yield Fact(subject.name, subject.shown, when["year"], sentence, subject.naming, ask, event=event)


def _quantity(subject: _Subject, predicate: str, sentence: str) -> Iterator[Fact]:
    """Read `has 58 sailors`, `stands 43 metres tall`, `lies 8 leagues west of Ossel`."""
    many = _MANY.match(predicate)
    if many is None:
        return
    number, unit, rest = many["number"], many["unit"], predicate[many.end() :]
    slot, stem, value = subject.slot, stem_of(many["verb"]), f"{number} {unit}"
    if (adjective := _ADJECTIVE.match(rest)) and many["verb"] in {"is", "was", "stands", "stood", "rises"}:
        be = "was" if many["verb"] in {"was", "stood"} else "is"
        ask = f"How {adjective['adjective']} {be} {slot}?"
    elif (way := _DIRECTION.match(rest)) and stem:
        other = f"{'the ' if way['article'] else ''}{bare(way['name'])}"
        ask = f"How far {way['way']} of {other} {stem[0]} {slot} {stem[1]}?"
    elif stem and stem[1] == "weigh":
        ask = f"How much {stem[0]} {slot} weigh?"
    elif stem and not many["link"] and number != "1":
        ask, value = f"How many {unit} {stem[0]} {slot} {stem[1]}?", number
    elif stem and many["link"] and stem[1] == "last":
        ask = f"For how long {stem[0]} {slot} last?"
    else:
        return
    yield Fact(subject.name, subject.shown, value, sentence, subject.naming, ask)
