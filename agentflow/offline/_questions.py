"""Questions of the offline engine: templates that write a question from facts, and read it back to answer it.

A template that can write a question can also read it, so a reader who sees other documents answers from those only. The
engine understands the sentence patterns of the bundled corpus and nothing else.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import combinations, islice, pairwise
from typing import Final, NamedTuple

from agentflow.offline._language import NAME, passages
from agentflow.offline._relations import HAVE, RelationWords, words_of
from agentflow.offline._statements import Statement, read
from agentflow.questions import (
    Basis,
    Draft,
    DraftKind,
    DraftStep,
    HiddenAnswer,
    HiddenRequest,
    OtherAnswer,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    ReadingAnswer,
    ReadingRequest,
    Readings,
    ShownDocument,
    documents_from,
)
from agentflow.values import ValueKind

_EACH: Final = 3
"""Maximum number of drafts of a kind about one group of documents."""
_SEARCHED: Final = 400
"""Maximum number of combinations of facts that a template tries."""
_ITEMS: Final = (3, 4, 5)
"""Numbers of things in a list."""
_NATURALNESS: Final = 3
"""The engine can't judge whether somebody would ask; this lets a question pass."""
_YEAR: Final = re.compile(r"[12]\d{3}")
_PRESENT: Final = re.compile(r"\bis\b")
_SEPARATOR: Final = re.compile(r", and |, or | and | or |, ")
_THINGS: Final = rf"(?P<items>(?:[Tt]he )?{NAME}(?:, (?:the )?{NAME})*,? (?:and|or) (?:the )?{NAME})"


class StatedFact(NamedTuple):
    """A fact in a passage."""

    subject: str
    shown: str
    """The subject as written in the middle of a sentence."""
    relation: str
    value: str
    """Number without its unit, year or name."""
    value_shown: str
    unit: str
    document: int
    passage: int
    quote: str

    @property
    def number(self) -> Decimal | None:
        """The value as a number; `None` for a name."""
        plain = self.value.replace(",", "")
        return Decimal(plain) if re.fullmatch(r"\d+(?:\.\d+)?", plain) else None

    def step(self) -> DraftStep:
        """Return the step that states it."""
        unit = f" {self.unit}" if self.unit and not self.relation.endswith(self.unit) else ""
        return DraftStep(
            statement=f"The {self.relation} of {self.shown} is {self.value}{unit}.",
            passage=self.passage,
            quote=self.quote,
            value=self.value,
        )


class StatedFacts:
    """Facts of documents, by subject and relation; what documents contradict is left out."""

    def __init__(self, documents: Sequence[ShownDocument]) -> None:
        unique_facts: dict[tuple[str, str, str], StatedFact] = {}
        for document in documents:
            for passage in document.passages:
                for statement in _read(document.title, passage.text):
                    fact = _fact(statement, document.number, passage.number)
                    unique_facts.setdefault((fact.subject, fact.relation, fact.value), fact)
        values: dict[tuple[str, str], list[StatedFact]] = {}
        for (subject, relation, _), fact in unique_facts.items():
            values.setdefault((subject, relation), []).append(fact)
        self.of: dict[tuple[str, str], StatedFact] = {
            key: same_facts[0] for key, same_facts in values.items() if len(same_facts) == 1
        }
        self.by_relation: dict[str, list[StatedFact]] = {}
        for (_, relation), fact in self.of.items():
            self.by_relation.setdefault(relation, []).append(fact)

    @cached_property
    def about(self) -> dict[str, list[StatedFact]]:
        """All facts, by their subjects."""
        by_subject: dict[str, list[StatedFact]] = {}
        for fact in self.of.values():
            by_subject.setdefault(fact.subject, []).append(fact)
        return by_subject

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """All relations, the longest first: `length of the quay` is not `length`."""
        return tuple(sorted(self.by_relation, key=lambda relation: (-len(relation), relation)))

    def listed(self, items: Sequence[str], relation: str) -> list[StatedFact] | None:
        """Return the facts of several things; `None` if one is unknown or their units differ."""
        facts = [self.of.get((item, relation)) for item in items]
        numeric = [fact for fact in facts if fact is not None and fact.number is not None]
        return numeric if len(numeric) == len(items) and len({fact.unit for fact in numeric}) == 1 else None


@lru_cache(maxsize=4096)
def _read(title: str, text: str) -> tuple[Statement, ...]:
    heading = f"[1] {title} (document)\n" if title else ""
    statements = (fact for fact in read(heading + text).facts if fact.relation and fact.value != fact.subject)
    return tuple(stated for stated in statements if stated.value in stated.quote and stated.quote in text)


def _fact(statement: Statement, document: int, passage: int) -> StatedFact:
    value = statement.value.removesuffix(f" {statement.unit}") if statement.unit else statement.value
    return StatedFact(
        statement.subject,
        statement.shown,
        statement.relation,
        value,
        statement.value_shown or value,
        statement.unit,
        document,
        passage,
        statement.quote,
    )


class Answered(NamedTuple):
    """A question with its answer, as a template finds it in facts."""

    kind: DraftKind
    question: str
    answer: str
    answer_type: ValueKind
    unit: str
    facts: tuple[StatedFact, ...]
    computes: tuple[tuple[str, str], ...] = ()
    """Computed steps: statement and expression."""
    rivals: tuple[str, ...] = ()


Writes = Callable[[StatedFacts], Iterator[Answered]]
Reads = Callable[[str, StatedFacts], Answered | None]


def propose(request: ProposalRequest) -> QuestionProposal:
    """Return drafts about documents, of as many kinds as there are."""
    facts = StatedFacts(request.documents)
    asked_questions = set(request.asked)
    by_template = [
        list(
            islice(
                (
                    write
                    for write in writes(facts)
                    if write.question not in asked_questions
                    and len(write.facts) + len(write.computes) >= request.min_steps
                ),
                _EACH,
            )
        )
        for writes, _ in TEMPLATES
    ]
    drafts: list[Draft] = []
    for rank in range(_EACH):
        drafts += (_draft(group[rank]) for group in by_template if rank < len(group))
    return QuestionProposal((), (), tuple(drafts[: request.keep]))


def read_hidden(request: HiddenRequest) -> HiddenAnswer:
    """Answer a question from some documents; the engine does not guess."""
    solved = answer_from(request.question, request.documents)
    if solved is None:
        return HiddenAnswer("", Basis.GUESSED, ())
    return HiddenAnswer(solved.answer, Basis.STATED, _documents(solved))


def read_all(request: ReadingRequest) -> Readings:
    """Answer questions from documents."""
    facts = StatedFacts(request.documents)
    readings: list[ReadingAnswer] = []
    for question in request.questions:
        solved = _answered(question.question, facts)
        readings.append(
            ReadingAnswer(
                number=question.number,
                documents=() if solved is None else _documents(solved),
                derivation="" if solved is None else "; ".join(fact.quote for fact in solved.facts)[:600],
                answers=() if solved is None else (solved.answer,),
                naturalness=_NATURALNESS,
            )
        )
    return Readings(tuple(readings))


def find_others(request: OthersRequest) -> OtherAnswers:
    """Answer a question from all documents that a search found, and from each alone."""
    alone = 0
    others: list[OtherAnswer] = []
    for document in request.documents:
        solved = answer_from(request.question, (document,))
        if solved is not None and solved.answer == request.answer:
            alone = alone or document.number
        elif solved is not None:
            others.append(
                OtherAnswer(
                    solved.answer, document.number, solved.facts[-1].quote[:400], "it states another value"
                )
            )
    return OtherAnswers(tuple(others), "", alone)


def answer_from(question: str, documents: Sequence[ShownDocument]) -> Answered | None:
    """Return the answer that documents determine; `None` if they do not, or the question has other words."""
    return _answered(question, StatedFacts(documents))


def answer_texts(question: str, texts: Sequence[str]) -> Answered | None:
    """Return the answer that observations determine."""
    shown = [
        (passage.id or f"text {index}", passage.topic, "\n".join(passage.sentences))
        for index, text in enumerate(texts)
        for passage in passages(text)
    ]
    return answer_from(question, documents_from(shown))


def _answered(question: str, facts: StatedFacts) -> Answered | None:
    return next((solved for _, reads in TEMPLATES if (solved := reads(question, facts)) is not None), None)


def _documents(answered: Answered) -> tuple[int, ...]:
    return tuple(dict.fromkeys(fact.document for fact in answered.facts))


def _draft(solved: Answered) -> Draft:
    steps = [fact.step() for fact in solved.facts]
    steps += (
        DraftStep(statement=statement, computes=expression) for statement, expression in solved.computes
    )
    return Draft(
        kind=solved.kind,
        asker="A writer of a guide to the isles who checks a figure or a name before it is printed.",
        question=solved.question,
        answer=solved.answer,
        answer_type=solved.answer_type,
        unit=solved.unit,
        documents=_documents(solved),
        steps=tuple(steps),
        reasoning=" ".join(step.statement for step in steps)[:600],
    )


def series(items: Sequence[str], word: str = "and") -> str:
    """Return things as a series: `Alba, Brenn and the Tern`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def items_of(text: str) -> list[str]:
    """Return the names of a series without articles."""
    return [re.sub(r"^[Tt]he ", "", item) for item in _SEPARATOR.split(text.strip()) if item]


def _groups(facts: StatedFacts, size: int) -> Iterator[tuple[StatedFact, ...]]:
    """Yield facts of one relation and unit with different values, each of another document where that is possible."""
    for relation in sorted(facts.by_relation):
        numeric_facts = [fact for fact in facts.by_relation[relation] if fact.number is not None]
        for unit in sorted({fact.unit for fact in numeric_facts}):
            same = [fact for fact in numeric_facts if fact.unit == unit]
            # Neighbours in the order of the documents have something in common.
            same.sort(key=lambda fact: (fact.document, fact.passage))
            for chosen in islice(combinations(same, size), 6):
                if (
                    len({fact.number for fact in chosen}) == size
                    and len({fact.document for fact in chosen}) > 1
                ):
                    yield chosen


def _shown(facts: Sequence[StatedFact], word: str = "and") -> str:
    return series([fact.shown for fact in facts], word)


def _clause(words: RelationWords, rest: str, *, plural: bool) -> str:
    """Return the predicate of a comparison: `has the most inhabitants`, `was founded first`."""
    if rest.startswith("+"):
        return f"{'are' if plural else 'is'} {rest[1:]}"
    return f"{words.verb.finite(past=words.past, plural=plural)} {rest}"


def _extreme(facts: Sequence[StatedFact], *, most: bool) -> Answered:
    words = words_of(facts[0].relation, facts[0].unit)
    chosen = (max if most else min)(facts, key=lambda fact: fact.number or Decimal())
    pairs = ", ".join(f"'{fact.subject}', s{number}" for number, fact in enumerate(facts, 1)).replace(
        "'s", "’s"
    )
    function = "argmax" if most else "argmin"
    clause = _clause(words, words.most if most else words.least, plural=False)
    return Answered(
        DraftKind.WHICH,
        f"Which of {_shown(facts)} {clause}?",
        chosen.subject,
        ValueKind.ENTITY,
        "",
        tuple(facts),
        ((f"Of these, {chosen.shown} {clause}.", f"{function}({pairs})"),),
    )


def _write_which(facts: StatedFacts) -> Iterator[Answered]:
    used = set[str]()
    for size in _ITEMS[:2]:
        for chosen in _groups(facts, size):
            words = words_of(chosen[0].relation, chosen[0].unit)
            if (
                words.most
                and chosen[0].relation not in used
                and not any("'" in fact.subject for fact in chosen)
            ):
                used.add(chosen[0].relation)
                yield _extreme(chosen, most=len(used) % 2 == 1)


def _read_which(question: str, facts: StatedFacts) -> Answered | None:
    match = re.fullmatch(rf"Which of {_THINGS} (?P<clause>.+)\?", question)
    if match is None:
        return None
    items = items_of(match["items"])
    for relation in facts.relations:
        listed = facts.listed(items, relation)
        for most in (True, False) if listed else ():
            answered = _extreme(listed or [], most=most)
            if answered.question == question:
                return answered
    return None


def _limited(facts: Sequence[StatedFact], limit: str, *, less: bool, count: bool) -> Answered:
    """Return the question which of several things are below or above a limit, or how many of them."""
    first = facts[0]
    words = words_of(first.relation, first.unit)
    bound = Decimal(limit.replace(",", ""))
    fitting = [
        fact
        for fact in facts
        if (fact.number or Decimal()) != bound and ((fact.number or Decimal()) < bound) is less
    ]
    clause = _clause(words, (words.less if less else words.more).format(v=limit, a="a"), plural=True)
    start = "How many of" if count else "Which of"
    sign = "<" if less else ">"
    compared = tuple(
        (
            f"{fact.value} is {'below' if (fact.number or Decimal()) < bound else 'not below'} {limit}.",
            f"s{number} {sign if fact in fitting else ('>=' if less else '<=')} {bound}",
        )
        for number, fact in enumerate(facts, 1)
    )
    counted = ((f"They are {len(fitting)}.", f"count({', '.join(repr(fact.subject) for fact in fitting)})"),)
    return Answered(
        DraftKind.COUNT if count else DraftKind.SET,
        f"{start} {_shown(facts)} {clause}?",
        str(len(fitting)) if count else series([fact.subject for fact in fitting]) if fitting else "",
        ValueKind.NUMBER if count else ValueKind.LIST,
        "",
        tuple(facts),
        (*compared, *(counted if count else ())),
    )


def _limits(facts: StatedFacts, size: int, *, count: bool) -> Iterator[Answered]:
    used = set[str]()
    for chosen in _groups(facts, size):
        words = words_of(chosen[0].relation, chosen[0].unit)
        if chosen[0].relation in used or not words.less or any("'" in fact.subject for fact in chosen):
            continue
        ordered = sorted(fact.number or Decimal() for fact in chosen)
        lower, upper = ordered[1], ordered[2]
        limit = _round_between(lower, upper)
        if limit is None:
            continue
        used.add(chosen[0].relation)
        less = len(used) % 2 == 1
        shown = str(limit) if _YEAR.fullmatch(str(limit)) and words.event else f"{limit:,}"
        yield _limited(chosen, shown, less=less, count=count)


def _round_between(lower: Decimal, upper: Decimal) -> int | None:
    """Return the roundest whole number strictly between two numbers."""
    for size in (1000, 500, 100, 50, 10, 5, 1):
        number = (int(lower) // size + 1) * size
        if lower < number < upper:
            return number
    return None


def _read_limited(question: str, facts: StatedFacts) -> Answered | None:
    match = re.fullmatch(
        rf"(?P<start>Which|How many) of {_THINGS} (?P<clause>.*?(?P<limit>\d[\d,.]*\d|\d).*)\?", question
    )
    if match is None:
        return None
    items = items_of(match["items"])
    for relation in facts.relations:
        listed = facts.listed(items, relation)
        for less in (True, False) if listed else ():
            answered = _limited(listed or [], match["limit"], less=less, count=match["start"] == "How many")
            if answered.question == question:
                return answered
    return None


def _ordered(facts: Sequence[StatedFact]) -> Answered:
    words = words_of(facts[0].relation)
    auxiliary = words.verb.auxiliary(past=True, plural=True)
    done = " ".join(filter(None, (words.verb.infinitive, words.asked)))
    order = sorted(facts, key=lambda fact: fact.number or Decimal())
    numbers = [facts.index(fact) + 1 for fact in order]
    pairs = pairwise(numbers)
    compared = tuple(
        (f"{facts[a - 1].shown} is earlier than {facts[b - 1].shown}.", f"s{a} < s{b}") for a, b in pairs
    )
    return Answered(
        DraftKind.ORDER,
        f"In which order {auxiliary} {_shown(facts)} {done}, from the earliest on?",
        ", then ".join(fact.subject for fact in order),
        ValueKind.LIST,
        "",
        tuple(facts),
        compared,
    )


def _write_order(facts: StatedFacts) -> Iterator[Answered]:
    used = set[str]()
    for chosen in _groups(facts, 3):
        if words_of(chosen[0].relation).event and chosen[0].relation not in used:
            used.add(chosen[0].relation)
            yield _ordered(chosen)


def _read_order(question: str, facts: StatedFacts) -> Answered | None:
    match = re.fullmatch(
        rf"In which order (?:were|did|was) {_THINGS} (?P<done>.+), from the earliest on\?", question
    )
    for relation in facts.relations if match else ():
        listed = (
            facts.listed(items_of(match["items"]), relation) if match and words_of(relation).event else None
        )
        if listed and (answered := _ordered(listed)).question == question:
            return answered
    return None


def _total(facts: Sequence[StatedFact]) -> Answered:
    first = facts[0]
    words = words_of(first.relation, first.unit)
    total = sum((fact.number or Decimal() for fact in facts), Decimal())
    have = words.verb.auxiliary(past=words.past, plural=True)
    return Answered(
        DraftKind.COMPUTATION,
        f"{words.ask} {have} {_shown(facts)} {words.verb.stem} together?",
        f"{total:,f}",
        ValueKind.NUMBER,
        words.unit,
        tuple(facts),
        (
            (
                f"Together they are {total:,f}.",
                " + ".join(f"s{number}" for number in range(1, len(facts) + 1)),
            ),
        ),
    )


def _write_total(facts: StatedFacts) -> Iterator[Answered]:
    used = set[str]()
    for chosen in _groups(facts, 3):
        words = words_of(chosen[0].relation, chosen[0].unit)
        if words.counted and words.verb is HAVE and chosen[0].relation not in used:
            used.add(chosen[0].relation)
            yield _total(chosen)


def _read_total(question: str, facts: StatedFacts) -> Answered | None:
    match = re.fullmatch(rf"How many .+? (?:do|did) {_THINGS} (?P<verb>\w+) together\?", question)
    for relation in facts.relations if match else ():
        listed = (
            facts.listed(items_of(match["items"]), relation) if match and words_of(relation).counted else None
        )
        if listed and (answered := _total(listed)).question == question:
            return answered
    return None


def _between(first: StatedFact, second: StatedFact) -> Answered:
    words, others = words_of(first.relation), words_of(second.relation)
    years = abs(int(first.value) - int(second.value))
    return Answered(
        DraftKind.DURATION,
        f"How many years passed between the {words.event} of {first.shown} and the {others.event} of {second.shown}?",
        str(years),
        ValueKind.NUMBER,
        "years",
        (first, second),
        ((f"Between {first.value} and {second.value} are {years} years.", "years(s1, s2)"),),
    )


def _write_between(facts: StatedFacts) -> Iterator[Answered]:
    dated = {
        key: fact
        for key, fact in facts.of.items()
        if _YEAR.fullmatch(fact.value) and words_of(fact.relation).event
    }
    by_subject: dict[str, list[StatedFact]] = {}
    for fact in dated.values():
        by_subject.setdefault(fact.subject, []).append(fact)
    # Only things that one fact connects: nobody asks for the time between others.
    for link in facts.of.values():
        for subject_fact in by_subject.get(link.subject, ())[:1]:
            for linked_fact in by_subject.get(link.value, ())[:1]:
                if subject_fact.document != linked_fact.document and subject_fact.value != linked_fact.value:
                    yield _between(*sorted((subject_fact, linked_fact), key=lambda fact: fact.value))


def _read_between(question: str, facts: StatedFacts) -> Answered | None:
    pattern = rf"How many years passed between the (?P<a>[a-z ]+?) of (?:the )?(?P<x>{NAME}) and the (?P<b>[a-z ]+?) of (?:the )?(?P<y>{NAME})\?"
    match = re.fullmatch(pattern, question)
    if match is None:
        return None
    dated = [relation for relation in facts.relations if words_of(relation).event]
    first = [
        facts.of[match["x"], event_relation]
        for event_relation in dated
        if words_of(event_relation).event == match["a"] and (match["x"], event_relation) in facts.of
    ]
    second = [
        facts.of[match["y"], event_relation]
        for event_relation in dated
        if words_of(event_relation).event == match["b"] and (match["y"], event_relation) in facts.of
    ]
    return _between(first[0], second[0]) if first and second else None


def _chained(*facts: StatedFact) -> Answered:
    """Return the question for the last of several facts, each about the value of the one before."""
    *before, last = facts
    words = words_of(last.relation, last.unit)
    owner = before[0].shown
    for fact in before:
        owner = f"the {fact.relation} of {owner}"
    past = words.past and not _PRESENT.search(last.quote)
    if words.asks:
        question = words.asks.format(e=owner, **{"is": "was" if past else "is"})
    elif words.ask:
        done = " ".join(filter(None, (words.verb.infinitive, words.asked)))
        question = (
            f"{words.ask} {words.verb.auxiliary(past=past, plural=False)} {owner} {done}".rstrip() + "?"
        )
    else:
        question = f"What {'was' if past else 'is'} the {last.relation} of {owner}?"
    numeric = last.number is not None
    year = bool(_YEAR.fullmatch(last.value)) and not last.unit
    kind = ValueKind.DATE if year else ValueKind.NUMBER if numeric else ValueKind.ENTITY
    return Answered(DraftKind.BRIDGE, question, last.value, kind, "" if year else last.unit, facts)


def _write_chain(facts: StatedFacts) -> Iterator[Answered]:
    used = set[str]()
    for first in islice(facts.of.values(), _SEARCHED):
        for second in facts.about.get(first.value, ()):
            for third in facts.about.get(second.value, ()):
                names = {first.subject, second.subject, third.subject, third.value}
                if len(names) < 4 or third.document == first.document or {first.subject, third.value} & used:
                    continue
                used |= {first.subject, third.value}
                yield _chained(first, second, third)


def _write_short_chain(facts: StatedFacts) -> Iterator[Answered]:
    used = set[str]()
    for first in islice(facts.of.values(), _SEARCHED):
        for second in facts.about.get(first.value, ()):
            if second.document != first.document and not {first.subject, second.value} & used:
                used |= {first.subject, second.value}
                yield _chained(first, second)


def _read_short_chain(question: str, facts: StatedFacts) -> Answered | None:
    match = re.search(rf".*\bthe (?P<first>[a-z][a-z ]*?) of (?:the )?(?P<name>{NAME})", question)
    first = facts.of.get((match["name"], match["first"])) if match else None
    chains = (_chained(first, second) for second in facts.about.get(first.value, ())) if first else ()
    return next((answered for answered in chains if answered.question == question), None)


def _read_chain(question: str, facts: StatedFacts) -> Answered | None:
    match = re.search(
        rf"\bthe (?P<second>[a-z][a-z ]*?) of the (?P<first>[a-z][a-z ]*?) of (?:the )?(?P<name>{NAME})",
        question,
    )
    first = facts.of.get((match["name"], match["first"])) if match else None
    second = facts.of.get((first.value, match["second"])) if match and first else None
    for relation in facts.relations if first and second else ():
        third = facts.of.get((second.value, relation)) if second else None
        if first and second and third and (answered := _chained(first, second, third)).question == question:
            return answered
    return None


def _write_set(facts: StatedFacts) -> Iterator[Answered]:
    yield from _limits(facts, _ITEMS[1], count=False)


def _write_count(facts: StatedFacts) -> Iterator[Answered]:
    yield from islice(_limits(facts, _ITEMS[2], count=True), 1)


TEMPLATES: Final[tuple[tuple[Writes, Reads], ...]] = (
    (_write_chain, _read_chain),
    (_write_which, _read_which),
    (_write_between, _read_between),
    (_write_set, _read_limited),
    (_write_order, _read_order),
    (_write_total, _read_total),
    (_write_count, _read_limited),
    (_write_short_chain, _read_short_chain),
)
"""Templates, each as a writer and a reader."""
