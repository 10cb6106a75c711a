"""Worlds of documents with known facts, generated from a seed, for testing how facts become questions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Final, NamedTuple

from agentflow.facts import (
    KIND,
    ClosedSet,
    DateValue,
    EntityValue,
    Fact,
    FactSpan,
    FactStore,
    NumberValue,
    TextValue,
    Value,
    show_value,
)
from agentflow.trajectory import digest

LONG_PAGE: Final = 100_000
"""Characters of the long page."""
LATE_FACT: Final = 90_000
"""Position of the fact that only the long page states."""

_STARTS: Final = (
    "Bren", "Skar", "Tor", "Vel", "Mor", "Hal", "Gren", "Os", "Rav", "Lin", "Dun", "Fen", "Kel", "Aro", "Stav", "Nor",
    "Ulm", "Pel", "Cor", "Wes",
)  # fmt: skip
_ENDS: Final = ("na", "holm", "vik", "stad", "mere", "gard", "by", "ness", "ton", "dal", "fjord", "wick")
_GIVEN: Final = (
    "Ada", "Jonas", "Mira", "Tobias", "Elin", "Karl", "Signe", "Otto", "Greta", "Nils", "Ruth", "Emil", "Vera", "Anders",
    "Ida", "Lukas",
)  # fmt: skip
_FILLER: Final = (
    "The weather on the coast changes several times a day.",
    "Old sailors say that the current is stronger in spring.",
    "Visitors should wear warm clothes, even in summer.",
    "The archive keeps many letters that nobody has read yet.",
    "Birds rest on the cliffs before they fly south.",
)


class WorldDocument(NamedTuple):
    """A page of a world."""

    node: str
    """Id of the node that observes it."""
    title: str
    """Title."""
    text: str
    """Text, in Markdown."""


@dataclass(frozen=True)
class FactWorld:
    """Documents, and everything that they state."""

    documents: tuple[WorldDocument, ...]
    """Pages, in path order."""
    store: FactStore
    """All facts, with all spans that state them, and the complete sets."""
    seed_name: str
    """Entity that exploration starts from."""
    aliases: dict[str, str]
    """Canonical names by the other names that pages use."""
    redundant: tuple[str, ...]
    """Ids of facts that several pages state."""
    contradicted: tuple[str, ...]
    """Ids of facts that contradict another one."""
    strays: tuple[str, ...]
    """Ids of facts that nothing connects with the seed."""
    late: str
    """Id of the fact that only the long page states, near its end."""


def fact_world(seed: int, *, islands: int = 4) -> FactWorld:
    """Generate a world of islands, lighthouses, keepers, villages and ships.

    It has aliases, facts that several pages state, contradictions, a table that is a complete set, facts that are
    unrelated to everything else, and a page of 100,000 characters with a fact near its end. The same seed gives the
    same world.

    >>> fact_world(1).store.facts == fact_world(1).store.facts
    True

    :param islands: number of islands, 2 to 25; a world has about 25 facts for each.
    """
    return _Builder(Random(seed), islands).world()


_SENTENCES: Final = {
    "island": "{subject} stands on {value}.",
    "first keeper": "The first keeper of {subject} was {value}.",
    "architect": "{subject} was designed by the architect {value}.",
    "year of construction": "{subject} was built in {value}.",
    "height": "The tower of {subject} has a height of {value}.",
    "birthplace": "{subject} was born in {value}.",
    "year of birth": "The year of birth of {subject} is {value}.",
    "captain": "The captain of the {subject} was {value}.",
    "home port": "The home port of the {subject} was {value}.",
    "year of launch": "The {subject} was launched in {value}.",
    "crew": "The crew of the {subject} consisted of {value}.",
    "population": "In {time}, the population of {subject} was {value}.",
    "area": "{subject} has an area of {value}.",
    "largest village": "The largest village of {subject} is {value}.",
    "patron": "The patron of the village of {subject} is {value}.",
    "opera": "{subject} composed the opera {value}.",
    KIND: "{subject} is a {value}.",
}


@dataclass
class _Page:
    node: str
    title: str
    parts: list[str] = field(default_factory=list[str])
    length: int = 0

    def add(self, text: str) -> int:
        """Append a text and return its position."""
        start = self.length
        self.parts.append(text)
        self.length += len(text)
        return start


class _Builder:
    """Construction of one world."""

    def __init__(self, random: Random, islands: int) -> None:
        self.random = random
        self.count = min(max(2, islands), 25)
        self.names: set[str] = set()
        self.pages: list[_Page] = []
        self.spans: dict[str, list[FactSpan]] = {}
        self.facts: dict[str, tuple[str, str, Value, DateValue | None]] = {}
        self.aliases: dict[str, str] = {}
        self.redundant: list[str] = []
        self.contradicted: list[str] = []
        self.strays: list[str] = []

    def world(self) -> FactWorld:
        islands = [self._place() for _ in range(self.count)]
        lights = [f"{self._place()} Light" for _ in range(self.count + 2)]
        people = [self._person() for _ in range(self.count + 3)]
        villages = [self._place() for _ in range(self.count)]
        ships = [self._place() for _ in range(self.count)]
        for name in lights[:2]:
            self.aliases[f"{name.removesuffix(' Light')} lighthouse"] = name
        self._lighthouses(lights, islands, people)
        self._people(people, villages)
        self._ships(ships, people, villages)
        self._islands(islands, villages)
        table = self._table(lights[:8])
        self._repeat()
        self._contradict(lights[:8][-1])
        self._strays()
        late = self._long_page(islands[0], villages[0])
        facts = [
            Fact(
                id=key,
                subject=subject,
                relation=relation,
                value=value,
                time=time,
                spans=tuple(self.spans[key]),
            )
            for key, (subject, relation, value, time) in self.facts.items()
        ]
        return FactWorld(
            documents=tuple(WorldDocument(page.node, page.title, "".join(page.parts)) for page in self.pages),
            store=FactStore(facts, [table], self.aliases),
            seed_name=lights[0],
            aliases=self.aliases,
            redundant=tuple(self.redundant),
            contradicted=tuple(self.contradicted),
            strays=tuple(self.strays),
            late=late,
        )

    def _new(self, name: str) -> bool:
        fresh = name not in self.names
        self.names.add(name)
        return fresh

    def _place(self) -> str:
        while True:
            name = self.random.choice(_STARTS) + self.random.choice(_ENDS)
            if len(self.names) > 100:
                name = self.random.choice(_STARTS) + name.lower()
            if self._new(name):
                return name

    def _person(self) -> str:
        return f"{self.random.choice(_GIVEN)} {self._place()}"

    def _page(self, title: str) -> _Page:
        page = _Page(f"node_{len(self.pages):02}", title)
        page.add(f"# {title}\n\n")
        self.pages.append(page)
        return page

    def _state(
        self, page: _Page, subject: str, relation: str, value: Value, year: int = 0, *, alias: str = ""
    ) -> str:
        """Write a sentence that states a fact, and return the fact's id."""
        time = DateValue(year) if year else None
        key = f"fact_{digest([subject, relation, value, time])}"
        sentence = _SENTENCES[relation].format(subject=alias or subject, value=show_value(value), time=year)
        start = page.add(sentence)
        page.add(" " if self.random.random() < 0.7 else f" {self.random.choice(_FILLER)} ")
        self._located(
            key, (subject, relation, value, time), FactSpan(page.node, start, start + len(sentence))
        )
        return key

    def _located(self, key: str, fact: tuple[str, str, Value, DateValue | None], span: FactSpan) -> None:
        self.facts[key] = fact
        self.spans.setdefault(key, []).append(span)

    def _lighthouses(self, lights: Sequence[str], islands: Sequence[str], people: Sequence[str]) -> None:
        for number, name in enumerate(lights):
            page = self._page(name)
            self._state(page, name, KIND, TextValue("lighthouse"))
            # Two lighthouses share each island, so that one condition is not enough to find one.
            self._state(page, name, "island", EntityValue(islands[number // 2 % len(islands)]))
            self._state(page, name, "first keeper", EntityValue(people[number % len(people)]))
            self._state(page, name, "architect", EntityValue(people[-1 - number % 2]))

    def _people(self, people: Sequence[str], villages: Sequence[str]) -> None:
        years = self.random.sample(range(1790, 1890), len(people))
        for number, name in enumerate(people):
            page = self._page(name) if number % 2 == 0 else self.pages[-1]
            self._state(page, name, KIND, TextValue("person"))
            self._state(page, name, "birthplace", EntityValue(villages[number % len(villages)]))
            self._state(page, name, "year of birth", DateValue(years[number]))

    def _ships(self, ships: Sequence[str], people: Sequence[str], villages: Sequence[str]) -> None:
        years = self.random.sample(range(1800, 1900), len(ships))
        for number, name in enumerate(ships):
            page = self._page(name) if number % 2 == 0 else self.pages[-1]
            self._state(page, name, KIND, TextValue("ship"))
            self._state(page, name, "captain", EntityValue(people[(number * 2 + 1) % len(people)]))
            self._state(page, name, "home port", EntityValue(villages[number // 2]))
            self._state(page, name, "year of launch", DateValue(years[number]))
            self._state(page, name, "crew", _number(self.random.randint(5, 60), "sailors"))

    def _islands(self, islands: Sequence[str], villages: Sequence[str]) -> None:
        areas = self.random.sample(range(3, 90), len(islands))
        page = self._page("The islands")
        for number, name in enumerate(islands):
            self._state(page, name, KIND, TextValue("island"))
            self._state(page, name, "area", _number(areas[number], "square kilometres"))
            if number:
                self._state(page, name, "largest village", EntityValue(villages[number]))
            for year in (1900, 1950):
                self._state(
                    page, name, "population", _number(self.random.randint(100, 4000), "inhabitants"), year
                )

    def _table(self, lights: Sequence[str]) -> ClosedSet:
        """Write the table of all lighthouses, which is a complete set."""
        page = self._page("All lighthouses")
        years = self.random.sample(range(1800, 1900), len(lights))
        heights = self.random.sample(range(9, 70), len(lights))
        start = page.add("| lighthouse | year of construction | height |\n| --- | --- | --- |\n")
        for name, year, height in zip(lights, years, heights, strict=True):
            values: list[tuple[str, Value]] = [
                ("year of construction", DateValue(year)),
                ("height", _number(height, "metres")),
            ]
            row = page.add(f"| {name} | {year} | {show_value(values[1][1])} |\n")
            for relation, value in values:
                key = f"fact_{digest([name, relation, value, None])}"
                self._located(key, (name, relation, value, None), FactSpan(page.node, row, page.length - 1))
        span = FactSpan(page.node, start, page.length)
        description = "lighthouses of the register"
        return ClosedSet(
            id=f"set_{digest([description, list(lights)])}",
            description=description,
            members=tuple(lights),
            spans=(span,),
        )

    def _repeat(self) -> None:
        """State some facts again on other pages, partly under other names."""
        others = {name: alias for alias, name in self.aliases.items()}
        page = self._page("Notes of a traveller")
        for key in self.random.sample(sorted(self.facts), min(len(self.facts), 12)):
            subject, relation, value, time = self.facts[key]
            alias = others.get(subject, "")
            self._state(page, subject, relation, value, time.year if time else 0, alias=alias)
            self.redundant.append(key)

    def _contradict(self, light: str) -> None:
        page = self._page("An old guide")
        (height,) = (fact for fact in self.facts.values() if fact[0] == light and fact[1] == "height")
        if isinstance(height[2], NumberValue):
            other = NumberValue(height[2].amount + 1, height[2].unit)
            self.contradicted.append(self._state(page, light, "height", other))

    def _strays(self) -> None:
        page = self._page("A life for music")
        for _ in range(2):
            composer, opera = self._person(), self._place()
            self.strays.append(self._state(page, composer, KIND, TextValue("composer")))
            self.strays.append(self._state(page, composer, "opera", EntityValue(opera)))

    def _long_page(self, island: str, village: str) -> str:
        page = self._page("A long report")
        _fill(page, self._filler(), LATE_FACT)
        late = self._state(page, island, "largest village", EntityValue(village))
        _fill(page, self._filler(), LONG_PAGE)
        return late

    def _filler(self) -> Iterator[str]:
        while True:
            yield f"{self.random.choice(_FILLER)} "


def _fill(page: _Page, filler: Iterator[str], length: int) -> None:
    while page.length < length:
        sentence = next(filler)
        # A sentence that is cut would join with the next one.
        page.add(sentence if page.length + len(sentence) <= length else " " * (length - page.length))


def _number(amount: int, unit: str) -> NumberValue:
    return NumberValue(Decimal(amount), unit)
