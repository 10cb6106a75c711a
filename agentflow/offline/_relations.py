"""Words for relations: how questions ask for a value, and how clauses state, bound and compare it.

Questions are written and parsed with the same words. `{e}` stands for the subject and `{v}` for the value.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from agentflow.offline._words import AGENTS, DONE_BY, EVENTS, PERSONS


class Verb(NamedTuple):
    """Forms of a verb."""

    stem: str
    """Infinitive: `carry`."""
    third: str
    """Third person: `carries`."""
    past: str
    """Simple past: `carried`."""

    def finite(self, *, past: bool, plural: bool) -> str:
        """Return the finite form."""
        if self.stem == "be":
            return ("were" if plural else "was") if past else ("are" if plural else "is")
        return self.past if past else self.stem if plural else self.third

    def auxiliary(self, *, past: bool, plural: bool) -> str:
        """Return the verb that a question starts with: `was`, `does`."""
        if self.stem == "be":
            return self.finite(past=past, plural=plural)
        return "did" if past else "do" if plural else "does"

    @property
    def infinitive(self) -> str:
        """The verb after the subject of a question; empty for `be`."""
        return "" if self.stem == "be" else self.stem

    @property
    def any_finite(self) -> str:
        """Pattern of all finite forms."""
        if self.stem == "be":
            return "(?:is|are|was|were)"
        return f"(?:{self.third}|{self.past}|{self.stem})"

    @property
    def any_auxiliary(self) -> str:
        """Pattern of all auxiliaries."""
        return "(?:[Ii]s|[Aa]re|[Ww]as|[Ww]ere)" if self.stem == "be" else "(?:[Dd]oes|[Dd]o|[Dd]id)"


BE = Verb("be", "is", "was")
HAVE = Verb("have", "has", "had")


class RelationWords(NamedTuple):
    """Words for a relation."""

    verb: Verb
    """Verb of the clauses."""
    past: bool
    """The clauses are in the past tense, if the facts don't show otherwise."""
    ask: str = ""
    """Start of the question for the value, before verb and subject: `In which year`; empty: by a noun phrase."""
    asked: str = ""
    """Rest of that question: `founded`."""
    asks: str = ""
    """Question without an inversion: `Who founded {e}?`; empty: the one above."""
    value: str = ""
    """Clause with the value, after the verb: `founded by {v}`."""
    less: str = ""
    """Clause with an upper bound: `founded before {v}`."""
    more: str = ""
    """Clause with a lower bound."""
    lesser: str = ""
    """Clause of the lesser of two: `founded earlier`."""
    greater: str = ""
    """Clause of the greater of two."""
    least: str = ""
    """Clause of the least of several: `founded first`."""
    most: str = ""
    """Clause of the greatest of several."""
    than: str = ""
    """Clause of a comparison with another subject: `taller than {e}`; empty for events."""
    noun: str = ""
    """Class of the subjects, if the relation shows it: `person`."""
    unit: str = ""
    """Unit that the words contain."""
    event: str = ""
    """Noun of the event, for a date: `foundation`."""
    part: str = ""
    """Part of the subject that the words are about."""
    numeric: bool = False
    """The values are numbers."""
    counted: bool = False
    """The unit is the name of what is counted."""


_HOLDERS = {
    "sailors": "carry",
    "passengers": "carry",
    "beds": "carry",
    "volumes": "hold",
    "workers": "employ",
    "patents": "hold",
    "notes": "strike",
    "pupils": "teach",
}
_VERBS = {
    "carry": Verb("carry", "carries", "carried"),
    "hold": Verb("hold", "holds", "held"),
    "employ": Verb("employ", "employs", "employed"),
    "strike": Verb("strike", "strikes", "struck"),
    "teach": Verb("teach", "teaches", "taught"),
    "weigh": Verb("weigh", "weighs", "weighed"),
    "cost": Verb("cost", "costs", "cost"),
    "last": Verb("last", "lasts", "lasted"),
    "reach": Verb("reach", "reaches", "reached"),
    "die": Verb("die", "dies", "died"),
    "sink": Verb("sink", "sinks", "sank"),
    "begin": Verb("begin", "begins", "began"),
    "fail": Verb("fail", "fails", "failed"),
}
_SUBJECTS = {
    "birth": "person",
    "death": "person",
    "launch": "ship",
    "sinking": "ship",
    "captain": "ship",
    "inhabitants": "place",
    "sailors": "ship",
    "passengers": "ship",
    "beds": "ship",
    "masts": "ship",
    "pupils": "person",
    "children": "person",
}
_ADJECTIVES = {
    "height": ("tall", "taller", "tallest", "lower", "lowest"),
    "length": ("long", "longer", "longest", "shorter", "shortest"),
    "depth": ("deep", "deeper", "deepest", "shallower", "shallowest"),
    "width": ("wide", "wider", "widest", "narrower", "narrowest"),
    "age": ("old", "older", "oldest", "younger", "youngest"),
}
_DEEDS = {agent: verb for verb, agent in AGENTS.items()}
"""Past participles by agent: `founder` -> `founded`."""
_DONE = {event.replace("_", " "): verb.replace("_", " ") for verb, event in EVENTS.items()}
"""Past participles, or the simple past, by event."""
_INTRANSITIVE = {"died": "die", "sank": "sink", "began": "begin", "failed": "fail"}
SITES = {
    "place of construction": "built",
    "place of signing": "signed",
    "place of sale": "sold",
    "place of sorting": "sorted",
    "location": "located",
}
"""Relations to places, with the participle of `the place where it was …`."""
LIVES = {"birthplace": "born", "burial place": "buried"}
"""Relations of people to places, with the participle of `the town where she was …`."""
_DATED = re.compile(r"\b(?:year|date|day)\b")
_SIZES = frozenset({"area", "size", "volume", "surface", "capacity"})
_LEVELS = ("higher", "highest", "lower", "lowest")
_SITED = re.compile(r"location of the (?P<part>[a-z][a-z'’ \-]*)")
_PAST_SITES = frozenset({"place of construction", "place of signing"})
_COMMON = frozenset(
    [
        "than",
        "more",
        "less",
        "fewer",
        "fewest",
        "most",
        "the",
        "for",
        "time",
        "earlier",
        "later",
        "first",
        "last",
        "before",
        "after",
        "year",
        "number",
        "which",
        "how",
        "many",
        "much",
        "where",
        "who",
        "whom",
        "what",
        "was",
        "has",
        "had",
        "and",
        "its",
        "place",
    ]
)
"""Words that questions about many relations have."""
YEAR_IN = "the year in which "
"""Start of a clause that stands for a year."""
_OF_PART = re.compile(r"(?P<relation>.+) of the (?P<part>[a-z][a-z'’ \-]*)")


@lru_cache(maxsize=1024)
def cues_of(relation: str) -> frozenset[str]:
    """Return words of which a question about a relation has at least one; none if it may have any words."""
    words = words_of(relation)
    verb = words.verb if words.verb not in (BE, HAVE) else ()
    told = (*words[2:], *verb, relation)
    found = {word for text in told if isinstance(text, str) for word in re.findall(r"[a-z]{3,}", text)}
    return frozenset(found - _COMMON)


def site_of(relation: str) -> tuple[str, str] | None:
    """Return participle and part of a relation to a place: `located`, `hall` for the location of the hall."""
    done = SITES.get(relation) or LIVES.get(relation)
    if done:
        return done, ""
    found = _SITED.fullmatch(relation)
    return None if found is None else ("located", found["part"])


@lru_cache(maxsize=1024)
def words_of(relation: str, unit: str = "") -> RelationWords:
    """Return the words for a relation."""
    event = relation.removeprefix("year of ").removeprefix("date of ")
    if event != relation and event in _DONE:
        words = _event(event)
        on = words.value.replace("in {v}", "on {v}")
        return words if relation.startswith("year") else words._replace(ask="On which date", value=on)
    if relation == "population":
        return _count("inhabitants")
    if relation.startswith("number of "):
        return _count(relation.removeprefix("number of "))
    if relation in _ADJECTIVES:
        return _extent(relation, unit)
    if (part := _OF_PART.fullmatch(relation)) is not None:
        whole = words_of(part["relation"], unit)
        if whole.ask or whole.asks:
            return _plain(relation, unit)._replace(
                verb=whole.verb,
                ask=whole.ask,
                asked=whole.asked,
                asks=whole.asks,
                part=part["part"],
                past=whole.past,
                value="",
                unit=whole.unit,
            )
    return _special(relation, unit) or _role(relation, unit)


def _event(event: str) -> RelationWords:
    done = _DONE[event]
    verb, past = (_VERBS[_INTRANSITIVE[done]], "") if done in _INTRANSITIVE else (BE, f"{done} ")
    return RelationWords(
        verb,
        True,
        ask="In which year",
        asked=past.strip(),
        value=f"{past}in {{v}}",
        less=f"{past}before {{v}}",
        more=f"{past}after {{v}}",
        lesser=f"{past}earlier",
        greater=f"{past}later",
        least=f"{past}first",
        most=f"{past}last",
        noun=_SUBJECTS.get(event, ""),
        event=event,
    )


def _count(unit: str) -> RelationWords:
    stem = _HOLDERS.get(unit, "")
    return RelationWords(
        _VERBS[stem] if stem else HAVE,
        unit in {"sailors", "patents", "pupils", "children"},
        ask=f"How many {unit}",
        value=f"{{v}} {unit}",
        less=f"fewer than {{v}} {unit}",
        more=f"more than {{v}} {unit}",
        lesser=f"fewer {unit}",
        greater=f"more {unit}",
        least=f"the fewest {unit}",
        most=f"the most {unit}",
        than=f"more {unit} than {{e}}",
        noun=_SUBJECTS.get(unit, ""),
        unit=unit,
        numeric=True,
        counted=True,
    )


def _extent(relation: str, unit: str) -> RelationWords:
    plain, more, most, less, least = _ADJECTIVES[relation]
    return RelationWords(
        BE,
        False,
        ask=f"How many {unit} {plain}" if unit else f"How {plain}",
        value=f"{{v}} {plain}",
        less=f"less than {{v}} {plain}",
        more=f"more than {{v}} {plain}",
        lesser=less,
        greater=more,
        least=f"the {least}",
        most=f"the {most}",
        than=f"{more} than {{e}}",
        unit=unit,
        numeric=True,
    )


def _special(relation: str, unit: str) -> RelationWords | None:
    match relation:
        case _ if relation in LIVES:
            done = LIVES[relation]
            return RelationWords(BE, True, ask="Where", asked=done, value=f"{done} in {{v}}", noun="person")
        case _ if relation in SITES:
            done = SITES[relation]
            past = relation in _PAST_SITES
            return RelationWords(BE, past, ask="Where", asked=done, value=f"{done} {{at}} {{v}}")
        case "namesake":
            return RelationWords(BE, False, ask="After whom or what", asked="named", value="named after {v}")
        case "weight":
            return _measure("weigh", unit, False, "heavier", "the heaviest", "lighter", "the lightest")
        case "price":
            return _measure(
                "cost", unit, False, "more expensive", "the most expensive", "cheaper", "the cheapest"
            )
        case "duration":
            verb = _VERBS["last"]
            return RelationWords(
                verb, True, f"How many {unit}" if unit else "How long", value="for {v}", less="for less than {v}",
                more="for more than {v}", lesser="for a shorter time", greater="longer", least="for the shortest time",
                most="longest", than="longer than {e}", unit=unit, numeric=True,
            )  # fmt: skip
        case "range":
            return _measure("reach", unit, False, "", "", "", "")._replace(
                lesser="less far",
                greater="farther",
                least="the least far",
                most="farthest",
                than="farther than {e}",
            )
        case "kind":
            return RelationWords(BE, False, ask="What kind of thing", value="{a} {v}")
        case _:
            pass
    if relation in _DEEDS:
        done = _DEEDS[relation]
        return RelationWords(BE, True, asks=f"Who {DONE_BY.get(done, done)} {{e}}?", value=f"{done} by {{v}}")
    return None


def _measure(stem: str, unit: str, past: bool, *compared: str) -> RelationWords:
    more, most, less, least = compared
    # `weighs 9 tonnes`, but `is heavier than`.
    return RelationWords(
        _VERBS[stem],
        past,
        ask=f"How many {unit}" if unit else "How much",
        value="{v}",
        less="less than {v}",
        more="more than {v}",
        lesser=f"+{less}",
        greater=f"+{more}",
        least=f"+{least}",
        most=f"+{most}",
        than=f"+{more} than {{e}}",
        unit=unit,
        numeric=True,
    )


def _role(relation: str, unit: str) -> RelationWords:
    """Return the words for a role: `had Ilsa Venn as its captain`."""
    head = relation.split(" of ")[0].split()[-1]
    person = head in PERSONS
    return _plain(relation, unit)._replace(
        asks=f"{'Who' if person else 'What'} {{is}} the {relation} of {{e}}?",
        value=f"{{v}} as {{its}} {relation}",
        past=person and relation != "owner",
        noun=_SUBJECTS.get(head, ""),
    )


def _plain(relation: str, unit: str) -> RelationWords:
    if _DATED.search(relation):
        return RelationWords(
            HAVE,
            False,
            less=f"{{a}} {relation} before {{v}}",
            more=f"{{a}} {relation} after {{v}}",
            lesser=f"the earlier {relation}",
            greater=f"the later {relation}",
            least=f"the earliest {relation}",
            most=f"the latest {relation}",
        )
    more, most, less, least = ("larger", "largest", "smaller", "smallest") if relation in _SIZES else _LEVELS
    return RelationWords(
        HAVE,
        False,
        less=f"{{a}} {relation} of less than {{v}}",
        more=f"{{a}} {relation} of more than {{v}}",
        lesser=f"the {less} {relation}",
        greater=f"the {more} {relation}",
        least=f"the {least} {relation}",
        most=f"the {most} {relation}",
        than=f"a {more} {relation} than {{e}}",
        unit=unit,
    )
