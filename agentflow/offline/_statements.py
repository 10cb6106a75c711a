"""Statements of a text, found by a small set of patterns of English sentences."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from agentflow.offline._language import NAME, NUMBER, TopicPassage, bare, passages
from agentflow.offline._words import (
    AGENTS,
    COUNTS,
    DONE,
    EXTENTS,
    HOLDING,
    KINDS,
    MAKERS,
    MEASURES,
    PERSONS,
    PLACES,
    ROLES,
    VAGUE,
    VERBS,
    WHOLES,
    past_of,
    stem_of,
    year_of,
)

SLOT = "\0"
"""Placeholder of the other thing in a question or a description."""

_THING = rf"(?P<article>[Tt]he )?(?P<name>{NAME})"
_AFTER = r"(?=[,.;:!?]|$| (?:who|which|whose|where|when|and|from|in|at|for|with|after|to|into|on|by|near|as|that|until)\b)"
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
_ALSO = re.compile(rf" and (?=(?:{'|'.join(sorted(VERBS))}) )")
_SITE = re.compile(rf"(?:(?P<verb>stands|lies|stood|lay)|has its (?P<part>[a-z]+)) in {_THING}{_AFTER}")
_CUT = re.compile(r"[;:,]| (?:who|which|whose|where|when|while|because|although|until|before)\b")


class Statement(NamedTuple):
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
    relation: str = ""
    """Relation as a noun phrase: `founder`, `height of the tower`; empty if there is no good one."""
    unit: str = ""
    """Unit of a number."""
    start: int = 0
    """Start of the clause in the sentence."""
    end: int = 0
    """End of the clause in the sentence; 0: right after the value and the subject."""

    @property
    def quote(self) -> str:
        """The clause that states the value, verbatim."""
        end = self.end
        if not end:
            end = _after(self.value, self.sentence, self.start)
            end = end if self.start else max(end, _after(self.subject, self.sentence, end))
        return self.sentence[self.start : end]

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

    facts: tuple[Statement, ...]
    """Statements with a value."""
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
    whole: bool = False
    """The part stands for the whole thing: the tower of a lighthouse."""

    @property
    def slot(self) -> str:
        return f"the {self.part} of {SLOT}" if self.part else SLOT

    def relation(self, name: str) -> str:
        """Return a relation of the part as one of the thing: `height of the tower`."""
        return f"{name} of the {self.part}" if name and self.part and not self.whole else name


@lru_cache(maxsize=512)
def read(text: str) -> Reading:
    """Return everything that the patterns find in a text."""
    whole = Reading((), {}, {})
    statements: list[Statement] = []
    for passage in passages(text):
        part = read_passage(passage)
        statements.extend(part.facts)
        for name, class_ in part.classes.items():
            whole.classes.setdefault(name, class_)
            whole.introductions.setdefault(name, part.introductions[name])
    return whole._replace(facts=tuple(statements))


@lru_cache(maxsize=2048)
def read_passage(passage: TopicPassage) -> Reading:
    """Read one passage; cached, because the same one is in many observations."""
    reading = Reading((), {}, {})
    return reading._replace(facts=tuple(_passage(passage, reading)))


def _passage(passage: TopicPassage, reading: Reading) -> Iterator[Statement]:
    topic = bare(passage.topic)
    shown = topic
    naming = ""
    clear = False
    for sentence in passage.sentences:
        if not sentence.endswith((".", "!", '."', ".”")):
            continue
        role = _ROLE_OF.match(sentence)
        if role is not None and role["role"].split(" ")[0] not in COUNTS:
            yield _role_statement(role, sentence)
            continue
        match = _SUBJECT.match(sentence)
        if (predicate := _after_topic(topic, sentence)) and (match is None or match["name"]):
            # A heading is a name, also with small letters: `Tollen amber`.
            naming, clear = sentence, True
            yield from _predicate(_Subject(topic, shown), predicate, sentence, reading)
            continue
        if match is None:
            clear = False
            continue
        predicate = sentence[match.end() :]
        if match["name"]:
            name = bare(match["name"])
            subject_text = _subject_text(match, name)
            if name != topic and " " not in name and passage.topic:
                # A common word at the start of a sentence looks like a name.
                clear = False
                continue
            if not topic or name == topic or not naming:
                topic, shown, naming = name, subject_text, sentence
            clear = name == topic
            yield from _predicate(_Subject(name, subject_text), predicate, sentence, reading)
        elif naming and (clear or match["owner"]):
            subject = _referred(match, topic, shown, naming, reading.classes.get(topic, ""))
            if match["owner"] == "The" and match["part"] in KINDS and topic not in reading.classes:
                reading.classes[topic] = match["part"]
                reading.introductions[topic] = sentence
            clear = clear and not subject.part
            yield from _predicate(subject, predicate, sentence, reading)


def _after_topic(topic: str, sentence: str) -> str:
    """Return the predicate of a sentence about the topic itself, if that is no capitalised name."""
    rest = sentence.removeprefix(f"{topic} ")
    is_continuation = topic and rest != sentence and topic.rpartition(" ")[2].islower()
    return rest if is_continuation and rest.split(" ", 1)[0] in VERBS else ""


def _subject_text(match: re.Match[str], name: str) -> str:
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
    whole = bool(part) and WHOLES.get(part) == class_.rpartition(" ")[2]
    return _Subject(topic, shown, "" if match["pronoun"] or itself else part, naming, whole)


def _role_statement(match: re.Match[str], sentence: str) -> Statement:
    subject = bare(match["name"])
    shown = f"the {subject}" if match["article"] else subject
    value = bare(match["value"])
    fact = _role(subject, shown, match["role"], match["be"], value, sentence, "")
    # `the Salt Widow`, but `the sailor Anselm Grote` is Anselm Grote.
    return fact._replace(value_shown=f"the {value}") if f"the {match['value']}" in sentence else fact


def _role(subject: str, shown: str, role: str, be: str, value: str, sentence: str, naming: str) -> Statement:
    who = "Who" if role.split()[-1] in PERSONS else "What"
    described = f"the {role} of {SLOT}"
    return Statement(
        subject,
        shown,
        value,
        sentence,
        naming,
        f"{who} {be} {described}?",
        described,
        value_shown=value,
        relation=role,
    )


def _predicate(subject: _Subject, predicate: str, sentence: str, reading: Reading) -> Iterator[Statement]:
    """Yield the facts in the rest of a sentence."""
    is_a = _IS_A.match(predicate)
    if is_a is not None and not subject.part:
        class_ = is_a["class"].strip()
        kind = class_ if is_a[0].split(" ")[1] != "the" else class_.split(" ")[-1]
        if kind not in ROLES:
            reading.classes.setdefault(subject.name, kind)
            reading.introductions.setdefault(subject.name, sentence)
    yield from _passive(subject, predicate, sentence)
    yield from _copula(subject, predicate, sentence)
    yield from _active(subject, predicate, sentence)
    yield from _quantity(subject, predicate, sentence)
    yield from _sites(subject, predicate, sentence)
    for more in _ALSO.finditer(predicate):
        clause = predicate[more.end() :]
        start = len(sentence) - len(clause)
        for statement in (*_quantity(subject, clause, sentence), *_sites(subject, clause, sentence)):
            yield statement._replace(start=start)


def _passive(subject: _Subject, predicate: str, sentence: str) -> Iterator[Statement]:
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
        start = len(sentence) - len(predicate) + clause.start("be") if clause.start() else 0
        for statement in _clause(subject, clause["be"], clause["verb"], rest, sentence):
            yield statement._replace(start=start)


def _clause(subject: _Subject, be: str, verb: str, rest: str, sentence: str) -> Iterator[Statement]:
    slot = subject.slot
    if year := _IN_YEAR.search(rest):
        done = f"{verb}{year['between'] or ''}"
        ask, event = f"In which year {be} {slot} {done}?", f"{slot} {be} {done}"
        relation = "" if year["between"] else subject.relation(year_of(verb))
        yield Statement(
            subject.name,
            subject.shown,
            year["year"],
            sentence,
            subject.naming,
            ask,
            event=event,
            relation=relation,
        )
    if by := _BY.search(rest):
        agent = AGENTS.get(verb)
        ask = f"Who {past_of(verb)} {slot}?" if agent else f"By whom or what {be} {slot} {verb}?"
        described = f"the {agent} of {slot}" if agent else ""
        relation = subject.relation(agent or "")
        yield _linked(subject, by, sentence, ask, described, f"that {be} {verb} by {SLOT}", relation)
    if verb == "named" and (after := _NAMESAKE.search(rest)):
        ask = f"After whom or what {be} {slot} named?"
        yield _linked(
            subject,
            after,
            sentence,
            ask,
            f"the namesake of {slot}",
            f"that {be} named after {SLOT}",
            subject.relation("namesake"),
        )
    elif place_match := _PLACE.search(rest):
        ask = f"Where {be} {slot} {verb}?"
        inverse = "" if verb == "born" else f"that {be} {verb} {place_match['where']} {SLOT}"
        described = f"the place where {slot} {be} {verb}"
        relation = subject.relation(PLACES.get(verb, ""))
        yield _linked(subject, place_match, sentence, ask, described, inverse, relation)


def _linked(
    subject: _Subject,
    thing: re.Match[str],
    sentence: str,
    ask: str,
    described: str,
    inverse: str,
    relation: str,
) -> Statement:
    value = bare(thing["name"])
    value_shown = f"the {value}" if thing["article"] else value
    if subject.part:
        inverse = ""
    return Statement(
        subject.name,
        subject.shown,
        value,
        sentence,
        subject.naming,
        ask,
        described,
        inverse,
        value_shown,
        relation=relation,
    )


def _copula(subject: _Subject, predicate: str, sentence: str) -> Iterator[Statement]:
    """Read `was the captain of the Grey Petrel`; of a part, `was Ilsa Venn`."""
    role = _IS_ROLE.match(predicate)
    named = role is not None and role["role"].endswith(subject.name.rpartition(" ")[2])
    if role is not None and not named and not subject.part and " and " not in role["role"]:
        other = bare(role["name"])
        shown = f"the {other}" if role["article"] else other
        fact = _role(other, shown, role["role"], role["be"], subject.name, sentence, subject.naming)
        yield fact._replace(value_shown=subject.shown)
    value = _IS_NAME.match(predicate)
    if value is not None and subject.part and not subject.part.startswith("nearest"):
        name = bare(value["value"])
        yield _role(subject.name, subject.shown, subject.part, value["be"], name, sentence, subject.naming)


def _active(subject: _Subject, predicate: str, sentence: str) -> Iterator[Statement]:
    """Read `founded Port Vannick`, `died in 1239`."""
    if subject.part:
        return
    did = _DID.match(predicate)
    if did is not None:
        other = bare(did["name"])
        shown = f"the {other}" if did["article"] else other
        described = f"the {MAKERS[did['verb']]} of {SLOT}"
        ask = f"Who {did['verb']} {SLOT}?"
        yield Statement(
            other,
            shown,
            subject.name,
            sentence,
            subject.naming,
            ask,
            described,
            value_shown=subject.shown,
            relation=MAKERS[did["verb"]],
        )
    when = _DID_IN.match(predicate)
    if when is not None and (stem := stem_of(when["verb"])):
        ask = f"In which year {stem[0]} {SLOT} {stem[1]}?"
        event = f"{SLOT} {when['verb']}"
        relation = year_of(when["verb"])
        yield Statement(
            subject.name,
            subject.shown,
            when["year"],
            sentence,
            subject.naming,
            ask,
            event=event,
            relation=relation,
        )


def _quantity(subject: _Subject, predicate: str, sentence: str) -> Iterator[Statement]:
    """Read `has 58 sailors`, `stands 43 metres tall`, `lies 8 leagues west of Ossel`."""
    many = _MANY.match(predicate)
    if many is None:
        return
    end = len(sentence) - len(predicate) + many.end()
    number, unit, rest = many["number"], many["unit"], predicate[many.end() :]
    slot, stem, value = subject.slot, stem_of(many["verb"]), f"{number} {unit}"
    relation = ""
    if (adjective := _ADJECTIVE.match(rest)) and many["verb"] in {"is", "was", "stands", "stood", "rises"}:
        be = "was" if many["verb"] in {"was", "stood"} else "is"
        ask = f"How {adjective['adjective']} {be} {slot}?"
        relation = EXTENTS[adjective["adjective"]]
        end += adjective.end()
    elif (way := _DIRECTION.match(rest)) and stem:
        other = f"{'the ' if way['article'] else ''}{bare(way['name'])}"
        ask = f"How far {way['way']} of {other} {stem[0]} {slot} {stem[1]}?"
        end += way.end()
    elif stem and stem[1] == "weigh":
        ask, relation = f"How much {stem[0]} {slot} weigh?", "weight"
    elif stem and not many["link"] and number != "1":
        ask, value = f"How many {unit} {stem[0]} {slot} {stem[1]}?", number
        relation = MEASURES.get(stem[1], "")
        if stem[1] in HOLDING and (subject.whole or not subject.part):
            unit = unit.rpartition(" ")[2] if unit.split()[0] in VAGUE else unit
            relation = f"number of {unit}"
    elif stem and many["link"] and stem[1] == "last":
        ask, relation = f"For how long {stem[0]} {slot} last?", "duration"
    else:
        return
    yield Statement(
        subject.name,
        subject.shown,
        value,
        sentence,
        subject.naming,
        ask,
        relation=subject.relation(relation),
        unit=unit,
        end=end,
    )


def _sites(subject: _Subject, predicate: str, sentence: str) -> Iterator[Statement]:
    """Read `stands in Ember Cross`, `has its lodge in Tollen Quay`."""
    match = _SITE.match(predicate)
    if match is None or subject.part:
        return
    part = match["part"]
    slot = f"the {part} of {SLOT}" if part else SLOT
    ask, described = f"Where is {slot}?", f"the place where {slot} is"
    inverse = "" if part else f"that {match['verb']} in {SLOT}"
    relation = f"location of the {part}" if part else "location"
    yield _linked(subject, match, sentence, ask, described, inverse, relation)


def _after(needle: str, text: str, start: int) -> int:
    """Return the end of the first whole occurrence of a text; the start without one."""
    match = re.compile(rf"(?<!\w){re.escape(needle)}(?!\w)").search(text, start)
    return match.end() if match else start
