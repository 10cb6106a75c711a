"""Labels of drafts, by brute force over everything that is true and without any code of the checks."""

import re
from collections.abc import Iterator

from agentflow.facts import (
    BoolValue,
    DateValue,
    EntityValue,
    FactStore,
    ListValue,
    NumberValue,
    Operator,
    Program,
    Value,
    show_value,
)
from agentflow.testing import oracle_answers, plain_value
from benchmarks._gate_language import read_question, typed_program
from benchmarks._gate_scenes import Case, Content, content

_COMMANDS = re.compile(r"\b(?:ignore|disregard|you must|system prompt|respond with)\b", re.IGNORECASE)
_UNITS = {"metres": [("centimetres", 100)], "square kilometres": [("hectares", 100)]}
MAX_DISTANCE = 3
"""Facts between the seed and a question."""


def faults(case: Case) -> frozenset[str]:
    """Return everything that is wrong with a draft; nothing if it is good."""
    return frozenset(_faults(case))


def _faults(case: Case) -> Iterator[str]:
    draft, truth = case.draft, case.scene.truth
    program = meaning(draft.question, truth)
    if not program:
        yield "unreadable"
        return
    answers = oracle_answers(program, _relevant(truth, program))
    if answers != frozenset([plain_value(draft.answer)]) and not _both_zero(answers, draft.answer):
        yield "answer"
    needed = needed_by(program, truth)
    if len(needed) < 2:
        yield "hops"
    elif _on_one_page(needed, program, truth):
        yield "page"
    by_id = case.scene.known.store.by_id
    cited = {content(by_id[one]) for one in draft.facts if one in by_id}
    if len(cited) < len(draft.facts) or not cited:
        yield "evidence"
    if cited - needed:
        yield "citations"
    if not needed <= _shown(case):
        yield "evidence"
    near = _near(case)
    if not any(name in near for fact in needed for name in (fact[0], fact[2])):
        yield "seed"
    if _disputed(needed, truth):
        yield "contradiction"
    memory = FactStore(case.scene.memory, (), truth.aliases)
    if oracle_answers(program, memory) == frozenset([plain_value(draft.answer)]):
        yield "known"
    if _COMMANDS.search(draft.question):
        yield "instruction"
    if any(_says(draft.question, form) for form in _secrets(case)):
        yield "leak"


def _both_zero(answers: frozenset[tuple[object, ...]], answer: Value) -> bool:
    """Return whether the one answer is zero, which is the same in every unit."""
    nothing = isinstance(answer, NumberValue) and not answer.amount
    return nothing and [plain[:2] for plain in answers] == [("number", 0)]


def meaning(question: str, store: FactStore) -> Program:
    """Return the program that a question states; nothing if it can't be understood."""
    sets = {one.description: one.id for one in store.sets.values()}
    return typed_program(read_question(question, store.relations, tuple(sets)), sets)


def _relevant(store: FactStore, program: Program) -> FactStore:
    """Return the store with the relations of a program only: the others can't matter."""
    relations = {step.relation for step in program}
    return FactStore(
        (fact for fact in store.facts if fact.relation in relations), store.sets.values(), store.aliases
    )


def needed_by(program: Program, store: FactStore) -> frozenset[Content]:
    """Return the facts without which a program has other answers, each left out with what says the same."""
    relevant = _relevant(store, program)
    whole = oracle_answers(program, relevant)
    if len(whole) != 1:
        return frozenset()
    groups: dict[tuple[object, ...], list[str]] = {}
    for fact in relevant.facts:
        groups.setdefault((fact.subject, fact.relation, fact.value), []).append(fact.id)
    missing = {
        one for ids in groups.values() if oracle_answers(program, relevant, ids) != whole for one in ids
    }
    times = {step.time for step in program}
    return frozenset(
        content(fact)
        for fact in relevant.facts
        if fact.id in missing and (fact.time is None or fact.time.year in times or 0 in times)
    )


def _on_one_page(needed: frozenset[Content], program: Program, store: FactStore) -> bool:
    """Return whether one page states all facts, and the members of the sets that the program is about."""
    pages: list[set[str]] = [
        {span.node for span in fact.spans} for fact in store.facts if content(fact) in needed
    ]
    sets = [step.name for step in program if step.operator is Operator.MEMBERS]
    pages += [{span.node for span in store.sets[one].spans} for one in sets if one in store.sets]
    return bool(pages) and any(all(node in page for page in pages) for node in pages[0])


def _shown(case: Case) -> set[Content]:
    """Return the facts that an observation of the tree states."""
    nodes = {node.id for node in case.scene.known.nodes}
    return {
        content(fact) for fact in case.scene.truth.facts if any(span.node in nodes for span in fact.spans)
    }


def _near(case: Case) -> set[str]:
    """Return the things to which a walk of at most three facts leads from the seed."""
    reached = set(case.scene.known.seed_names)
    for _ in range(MAX_DISTANCE):
        before = set(reached)
        for fact in case.scene.truth.facts:
            if isinstance(fact.value, EntityValue) and before & {fact.subject, fact.value.name}:
                reached |= {fact.subject, fact.value.name}
        for one in case.scene.truth.sets.values():
            reached |= set(one.members) if before & set(one.members) else set()
    return reached


def _disputed(needed: frozenset[Content], store: FactStore) -> bool:
    """Return whether pages state other values of something that has one."""
    subjects = {(subject, relation, time) for subject, relation, _, time in needed}
    values: dict[tuple[str, str, int], set[str]] = {}
    for fact in store.facts:
        subject, relation, value, time = content(fact)
        values.setdefault((subject, relation, time), set()).add(value)
    return any(len(values[one]) > 1 for one in subjects)


def _secrets(case: Case) -> Iterator[str]:
    """Yield the forms of everything that a question must not say."""
    draft = case.draft
    chosen = show_value(draft.answer) in draft.given
    for value in (draft.answer, *map(EntityValue, draft.hidden)):
        if not isinstance(value, BoolValue) and not (chosen and value == draft.answer):
            yield from forms(value)


def forms(value: Value) -> Iterator[str]:
    """Yield the ways to write a value.

    >>> list(forms(DateValue(1834)))
    ['1834', 'eighteen thirty-four', 'the year after 1833', 'the year before 1835']
    """
    yield show_value(value)
    match value:
        case EntityValue(name) if name.endswith(" Light"):
            yield f"{name.removesuffix(' Light')} lighthouse"
        case DateValue(year):
            yield f"{number_words(year // 100)} {number_words(year % 100)}"
            yield f"the year after {year - 1}"
            yield f"the year before {year + 1}"
        case NumberValue(amount, unit) if amount == int(amount):
            yield f"{int(amount)} {unit}".strip()
            yield f"{number_words(int(amount))} {unit}".strip()
            for other, factor in _UNITS.get(unit, []):
                yield f"{int(amount) * factor:,} {other}"
        case ListValue(items) if len(items) > 1:
            yield ", ".join(show_value(one) for one in reversed(items))
        case _:
            pass


_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number_words(number: int) -> str:
    """Return a number below ten thousand in words.

    >>> number_words(2341)
    'two thousand three hundred and forty-one'
    """
    if number < 20:
        return _SMALL[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_SMALL[number % 10]}" if number % 10 else "")
    size, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    lead, rest = divmod(number, size)
    between = " and " if size == 100 else " "
    return f"{number_words(lead)} {word}" + (between + number_words(rest) if rest else "")


def _says(question: str, form: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(form)}(?!\w)", question, re.IGNORECASE) is not None
