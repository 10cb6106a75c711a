"""A small language: programs are written as questions and read back, pages are read sentence by sentence.

Nothing here knows a world. Code of the checks is not used either.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from agentflow.facts import (
    Comparison,
    DateValue,
    EntityValue,
    NumberValue,
    Operator,
    Program,
    ProgramInput,
    ProgramStep,
    TextValue,
    TranslationStep,
    Value,
    show_value,
)

NAME = r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)*(?: lighthouse)?"
SENTENCES = (
    (rf"(?P<s>{NAME}) stands on (?P<v>{NAME})\.", "island"),
    (rf"The first keeper of (?P<s>{NAME}) was (?P<v>{NAME})\.", "first keeper"),
    (rf"(?P<s>{NAME}) was designed by the architect (?P<v>{NAME})\.", "architect"),
    (rf"(?P<s>{NAME}) was built in (?P<v>\d{{4}})\.", "year of construction"),
    (rf"The tower of (?P<s>{NAME}) has a height of (?P<v>[\d,.]+ [a-z ]+)\.", "height"),
    (rf"(?P<s>{NAME}) was born in (?P<v>{NAME})\.", "birthplace"),
    (rf"The year of birth of (?P<s>{NAME}) is (?P<v>\d{{4}})\.", "year of birth"),
    (rf"The captain of the (?P<s>{NAME}) was (?P<v>{NAME})\.", "captain"),
    (rf"The home port of the (?P<s>{NAME}) was (?P<v>{NAME})\.", "home port"),
    (rf"The (?P<s>{NAME}) was launched in (?P<v>\d{{4}})\.", "year of launch"),
    (rf"The crew of the (?P<s>{NAME}) consisted of (?P<v>[\d,.]+ [a-z ]+)\.", "crew"),
    (
        rf"In (?P<t>\d{{4}}), the population of (?P<s>{NAME}) was (?P<v>[\d,.]+ [a-z ]+)\.",
        "population",
    ),
    (rf"(?P<s>{NAME}) has an area of (?P<v>[\d,.]+ [a-z ]+)\.", "area"),
    (rf"The largest village of (?P<s>{NAME}) is (?P<v>{NAME})\.", "largest village"),
    (rf"(?P<s>{NAME}) composed the opera (?P<v>{NAME})\.", "opera"),
    (rf"(?P<s>{NAME}) is a (?P<v>[a-z ]+)\.", "kind"),
)
"""Patterns of sentences with their relations."""
TEMPLATES = {
    "island": "{s} stands on {v}.",
    "first keeper": "The first keeper of {s} was {v}.",
    "architect": "{s} was designed by the architect {v}.",
    "year of construction": "{s} was built in {v}.",
    "height": "The tower of {s} has a height of {v}.",
    "birthplace": "{s} was born in {v}.",
    "year of birth": "The year of birth of {s} is {v}.",
    "captain": "The captain of the {s} was {v}.",
    "home port": "The home port of the {s} was {v}.",
    "year of launch": "The {s} was launched in {v}.",
    "crew": "The crew of the {s} consisted of {v}.",
    "population": "In {t}, the population of {s} was {v}.",
    "area": "{s} has an area of {v}.",
    "largest village": "The largest village of {s} is {v}.",
    "kind": "{s} is a {v}.",
}
"""Sentences of pages that are added to a world."""
_PATTERNS = tuple((re.compile(pattern), relation) for pattern, relation in SENTENCES)
_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")
_AMOUNT = re.compile(r"(?P<amount>\d[\d,]*(?:\.\d+)?)(?: (?P<unit>[a-z ]+))?")
_DECADE = re.compile(r"the (\d{3}0)s")
_GIVEN = re.compile(r"Given that (?P<aside>.+?), (?P<rest>(?:what|is) .+)")


class StatedFact(NamedTuple):
    """A fact as a sentence or a cell states it."""

    subject: str
    relation: str
    value: Value
    year: int
    start: int
    end: int

    @property
    def said(self) -> tuple[str, str, Value, int]:
        """The statement without its place."""
        return self.subject, self.relation, self.value, self.year


class StatedPage(NamedTuple):
    """Everything that a page states."""

    statements: tuple[StatedFact, ...]
    sets: tuple[tuple[str, tuple[str, ...]], ...]
    """Descriptions and members of complete tables."""


def same_name(name: str) -> str:
    """Return the usual form of a name: the Brenn lighthouse is Brenn Light.

    >>> same_name("Brenn lighthouse")
    'Brenn Light'
    """
    return f"{name.removesuffix(' lighthouse')} Light" if name.endswith(" lighthouse") else name


def value_of(said: str, relation: str) -> Value | None:
    """Return the value of a relation that a text states."""
    said = said.strip()
    if not said or "[…]" in said:
        return None
    if "year" in relation:
        return DateValue(int(said)) if re.fullmatch(r"\d{4}", said) else None
    if relation == "kind":
        return TextValue(said)
    if (number := _AMOUNT.fullmatch(said)) is not None:
        return NumberValue(Decimal(number["amount"].replace(",", "")), number["unit"] or "")
    return EntityValue(same_name(said)) if re.fullmatch(NAME, said) else None


@lru_cache(maxsize=4096)
def read_page(text: str) -> StatedPage:
    """Return the statements of a text, and the tables whose caption says that they are complete."""
    statements: list[StatedFact] = []
    start = 0
    for end in (*(found.span() for found in _BREAK.finditer(text)), (len(text), len(text))):
        sentence = text[start : end[0]]
        for pattern, relation in _PATTERNS if sentence.endswith(".") else ():
            found = pattern.fullmatch(sentence)
            if found is not None and (value := value_of(found["v"], relation)) is not None:
                year = int(found["t"]) if relation == "population" else 0
                place = (start, start + len(sentence))
                statements.append(StatedFact(same_name(found["s"]), relation, value, year, *place))
                break
        start = end[1]
    sets: list[tuple[str, tuple[str, ...]]] = []
    for table in re.finditer(r"(?:# All (?P<what>[a-z]+)\n\n)?(?P<rows>(?:\|.*\|\n?){3,})", text):
        cells, members = _table(table["rows"], table.start("rows"))
        statements += cells
        if table["what"]:
            sets.append((table["what"], members))
    return StatedPage(tuple(statements), tuple(sets))


def _table(rows: str, offset: int) -> tuple[list[StatedFact], tuple[str, ...]]:
    lines = rows.splitlines(keepends=True)
    header = [cell.strip() for cell in lines[0].strip().strip("|").split("|")]
    found: list[StatedFact] = []
    members: list[str] = []
    place = offset + len(lines[0]) + len(lines[1])
    for line in lines[2:]:
        name, *cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        members.append(same_name(name))
        for relation, cell in zip(header[1:], cells, strict=False):
            if (value := value_of(cell, relation)) is not None:
                found.append(
                    StatedFact(same_name(name), relation, value, 0, place, place + len(line.rstrip()))
                )
        place += len(line)
    return found, tuple(members)


# Writing.


def write_question(program: Program, sets: Mapping[str, str]) -> str:
    """Return the question that a program answers.

    :param sets: descriptions of the closed sets by id.
    """
    writer = _Writer(program, sets)
    last = program[-1]
    if last.operator in _TRUTHS:
        first, second = (writer.thing(given) for given in last.inputs)
        return f"Is {first} {_TRUTHS[last.operator]} {second}?"
    return f"What is {writer.thing(len(program))}?"


_TRUTHS = {
    Operator.BEFORE: "earlier than",
    Operator.GREATER: "greater than",
    Operator.EQUAL: "the same as",
}
_RANKS = {Operator.GREATEST: "greatest", Operator.LEAST: "least"}


class _Writer:
    def __init__(self, program: Program, sets: Mapping[str, str]) -> None:
        self.program = program
        self.sets = sets

    def thing(self, given: ProgramInput) -> str:
        if not isinstance(given, int):
            return show_value(given)
        step = self.program[given - 1]
        inputs = [self.thing(one) for one in step.inputs]
        time = f" in {step.time}" if step.time else ""
        match step.operator:
            case Operator.FOLLOW:
                return f"the {step.relation}{time} of {' or '.join(inputs)}"
            case Operator.GREATEST | Operator.LEAST:
                return f"the one with the {_RANKS[step.operator]} {step.relation} among {' or '.join(inputs)}"
            case Operator.COUNT:
                return f"the number of {inputs[0]}"
            case Operator.LIST:
                return f"the list of {inputs[0]}"
            case Operator.SUM:
                joined = " and ".join(inputs)
                return f"the total of {joined}" if len(inputs) == 1 else f"the sum of {joined}"
            case Operator.DIFFERENCE:
                return f"the difference between {' and '.join(inputs)}"
            case Operator.AND if not isinstance(step.inputs[0], int):
                return f"{inputs[0]} ({inputs[1]})"
            case _:
                return self.described(given)

    def described(self, given: int) -> str:
        noun, conditions, whole = self.conditions(given)
        said = " and ".join(f"whose {one}" for one in conditions)
        lead = f"all {whole}" if whole else f"the {noun or 'one'}"
        return f"{lead} {said}".rstrip()

    def conditions(self, given: ProgramInput) -> tuple[str, list[str], str]:
        """Return the noun, the conditions and the closed set of described things."""
        if not isinstance(given, int):
            raise ValueError("a constant is not described")
        step = self.program[given - 1]
        match step.operator:
            case Operator.MEMBERS:
                return "", [], self.sets[step.name]
            case Operator.FIND if step.relation == "kind":
                return self.thing(step.inputs[0]), [], ""
            case Operator.FIND:
                return "", [f"{step.relation} is {self.thing(step.inputs[0])}"], ""
            case Operator.AND:
                parts = [self.conditions(one) for one in step.inputs]
                nouns = [part[0] for part in parts if part[0]]
                return nouns[0] if nouns else "", [one for part in parts for one in part[1]], parts[0][2]
            case Operator.WHERE:
                noun, conditions, whole = self.conditions(step.inputs[0])
                return noun, [*conditions, self.condition(step)], whole
            case _:
                raise ValueError(f"no words for {step.operator}")

    def condition(self, step: ProgramStep) -> str:
        bounds = [self.thing(one) for one in step.inputs[1:]]
        match step.comparison:
            case Comparison.EQUAL:
                return f"{step.relation} is {bounds[0]}"
            case Comparison.WITHIN:
                return f"{step.relation} is between {bounds[0]} and {bounds[-1]}"
            case Comparison.MORE:
                return f"{step.relation} is more than {bounds[0]}"
            case Comparison.LESS:
                return f"{step.relation} is less than {bounds[0]}"


# Reading questions.


class Phrase(NamedTuple):
    """A step with the steps that it needs."""

    operator: Operator
    inputs: tuple["Phrase | str", ...]
    relation: str = ""
    comparison: Comparison = Comparison.EQUAL
    time: str = ""


def read_question(
    question: str, relations: Sequence[str], sets: Sequence[str]
) -> tuple[TranslationStep, ...]:
    """Return the steps of a question; none if it is not understood."""
    asked = question[: question.find("?") + 1].rpartition(". ")[2]
    if (aside := _GIVEN.match(asked)) is not None:
        asked = aside["rest"][0].upper() + aside["rest"][1:]
    phrase = _QuestionParser(frozenset(relations), frozenset(sets)).question(asked.removesuffix("?"))
    steps: list[TranslationStep] = []
    if phrase is not None:
        _flatten(phrase, steps)
    return tuple(steps)


def _flatten(phrase: Phrase, steps: list[TranslationStep]) -> str:
    inputs = tuple(one if isinstance(one, str) else _flatten(one, steps) for one in phrase.inputs)
    steps.append(TranslationStep(phrase.operator, inputs, phrase.relation, phrase.comparison, phrase.time))
    return f"#{len(steps)}"


class _QuestionParser:
    def __init__(self, relations: frozenset[str], sets: frozenset[str]) -> None:
        self.relations = relations
        self.sets = sets

    def question(self, text: str) -> Phrase | None:
        if text.startswith("Is "):
            for operator, words in _TRUTHS.items():
                for first, second in _splits(text[3:], f" {words} "):
                    one, two = self.thing(first), self.thing(second)
                    if one is not None and two is not None:
                        return Phrase(operator, (one, two))
            return None
        found = self.thing(text[8:]) if text.startswith("What is ") else None
        return found if isinstance(found, Phrase) else None

    def thing(self, text: str) -> Phrase | str | None:
        """Return what a phrase means; a constant is a text."""
        if re.fullmatch(rf"{NAME}|\d[\d,.]*(?: [a-z ]+)?", text):
            return text
        if (described := re.fullmatch(rf"(?P<name>{NAME}) \((?P<what>.+)\)", text)) is not None:
            what = self.thing(described["what"])
            return None if what is None else Phrase(Operator.AND, (described["name"], what))
        for way in (self.ranked, self.computed, self.related, self.described):
            if (found := way(text)) is not None:
                return found
        return None

    def ranked(self, text: str) -> Phrase | None:
        found = re.fullmatch(r"the one with the (greatest|least) ([a-z ]+?) among (.+)", text)
        if found is None or found[2] not in self.relations:
            return None
        items = [self.thing(one) for one in found[3].split(" or ")]
        given = tuple(one for one in items if one is not None)
        operator = Operator.GREATEST if found[1] == "greatest" else Operator.LEAST
        return Phrase(operator, given, found[2]) if len(given) == len(items) else None

    def computed(self, text: str) -> Phrase | None:
        for lead, operator in (
            ("the number of ", Operator.COUNT),
            ("the list of ", Operator.LIST),
            ("the total of ", Operator.SUM),
        ):
            if text.startswith(lead) and (inner := self.thing(text[len(lead) :])) is not None:
                return Phrase(operator, (inner,))
        for lead, operator in (
            ("the sum of ", Operator.SUM),
            ("the difference between ", Operator.DIFFERENCE),
        ):
            for first, second in _splits(text[len(lead) :], " and ") if text.startswith(lead) else ():
                one, two = self.thing(first), self.thing(second)
                if one is not None and two is not None:
                    return Phrase(operator, (one, two))
        return None

    def related(self, text: str) -> Phrase | None:
        for lead, rest in _splits(text, " of "):
            found = re.fullmatch(r"the (?P<relation>[a-z ]+?)(?: in (?P<time>\d{4}))?", lead)
            if found is not None and found["relation"] in self.relations:
                inner = self.thing(rest)
                if inner is not None:
                    return Phrase(Operator.FOLLOW, (inner,), found["relation"], time=found["time"] or "")
        return None

    def described(self, text: str) -> Phrase | None:
        found = re.fullmatch(r"(?P<lead>all|the) (?P<noun>[a-z]+)(?: whose (?P<conditions>.+))?", text)
        if found is None:
            return None
        base: Phrase | None = None
        if found["lead"] == "all":
            if found["noun"] not in self.sets:
                return None
            base = Phrase(Operator.MEMBERS, (found["noun"],))
        elif found["noun"] != "one":
            base = Phrase(Operator.FIND, (found["noun"],), "kind")
        return self.limited(base, found["conditions"]) if found["conditions"] else base

    def limited(self, base: Phrase | None, text: str) -> Phrase | None:
        for first, rest in (*_splits(text, " and whose "), (text, "")):
            one = self.condition(base, first)
            if one is not None and (whole := self.limited(one, rest) if rest else one) is not None:
                return whole
        return None

    def condition(self, base: Phrase | None, text: str) -> Phrase | None:
        for relation, said in _splits(text, " is "):
            if relation not in self.relations:
                continue
            found = re.fullmatch(r"(?P<how>more than|less than|in|between) (?P<bound>.+)", said)
            if found is not None and base is not None:
                how = {"more than": Comparison.MORE, "less than": Comparison.LESS}
                comparison = how.get(found["how"], Comparison.WITHIN)
                bound = said if found["how"] == "between" else found["bound"]
                return Phrase(Operator.WHERE, (base, bound), relation, comparison)
            value = self.thing(said)
            if value is None:
                continue
            if base is not None and _closed(base):
                return Phrase(Operator.WHERE, (base, value), relation)
            condition = Phrase(Operator.FIND, (value,), relation)
            return condition if base is None else Phrase(Operator.AND, (base, condition))
        return None


def _closed(phrase: Phrase | str) -> bool:
    return isinstance(phrase, Phrase) and (
        phrase.operator is Operator.MEMBERS
        or (phrase.operator is Operator.WHERE and _closed(phrase.inputs[0]))
    )


def _splits(text: str, at: str) -> Iterator[tuple[str, str]]:
    place = text.find(at)
    while place >= 0:
        yield text[:place], text[place + len(at) :]
        place = text.find(at, place + 1)


def typed_program(steps: Sequence[TranslationStep], sets: Mapping[str, str]) -> Program:
    """Return the program of some steps.

    :param sets: ids of the closed sets by description.
    """
    return tuple(_typed(step, sets) for step in steps)


def _typed(step: TranslationStep, sets: Mapping[str, str]) -> ProgramStep:
    if step.operator is Operator.MEMBERS:
        return ProgramStep(step.operator, name=sets.get(step.inputs[0], step.inputs[0]))
    inputs: list[ProgramInput] = []
    for place, said in enumerate(step.inputs):
        bound = step.operator is Operator.FIND or (step.operator is Operator.WHERE and place > 0)
        inputs += _constant(said, step.relation if bound else "")
    time = int(step.time) if step.time else 0
    return ProgramStep(step.operator, tuple(inputs), step.relation, step.comparison, time=time)


def _constant(said: str, relation: str) -> Iterator[ProgramInput]:
    if said.startswith("#"):
        yield int(said[1:])
    elif (decade := _DECADE.fullmatch(said)) is not None:
        yield from (DateValue(int(decade[1])), DateValue(int(decade[1]) + 9))
    elif (ends := re.fullmatch(r"between (.+) and (.+)", said)) is not None:
        unit = re.sub(r"[\d,.]+ ?", "", ends[2])
        first = ends[1] if "year" in relation or not unit or ends[1].endswith(unit) else f"{ends[1]} {unit}"
        yield from _constant(first, relation)
        yield from _constant(ends[2], relation)
    elif (value := value_of(said, relation)) is not None:
        yield value
    else:
        yield EntityValue(said)
