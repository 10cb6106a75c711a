"""Words for relations: how questions ask for a value, and how clauses bound and compare it.

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
    less: str = ""
    """Clause with an upper bound: `founded before {v}`."""
    more: str = ""
    """Clause with a lower bound."""
    least: str = ""
    """Clause of the least of several: `founded first`."""
    most: str = ""
    """Clause of the greatest of several."""
    unit: str = ""
    """Unit that the words contain."""
    event: str = ""
    """Noun of the event, for a date: `foundation`."""
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
_ADJECTIVES = {
    "height": ("tall", "tallest", "lowest"),
    "length": ("long", "longest", "shortest"),
    "depth": ("deep", "deepest", "shallowest"),
    "width": ("wide", "widest", "narrowest"),
    "age": ("old", "oldest", "youngest"),
}
_DEEDS = {agent: verb for verb, agent in AGENTS.items()}
"""Past participles by agent: `founder` -> `founded`."""
_DONE = {event.replace("_", " "): verb.replace("_", " ") for verb, event in EVENTS.items()}
"""Past participles, or the simple past, by event."""
_INTRANSITIVE = {"died": "die", "sank": "sink", "began": "begin", "failed": "fail"}
_SITES = {
    "place of construction": "built",
    "place of signing": "signed",
    "place of sale": "sold",
    "place of sorting": "sorted",
    "location": "located",
}
"""Relations to places, with the participle of `the place where it was …`."""
_LIVES = {"birthplace": "born", "burial place": "buried"}
"""Relations of people to places, with the participle of `the town where she was …`."""
_DATED = re.compile(r"\b(?:year|date|day)\b")
_SIZES = frozenset({"area", "size", "volume", "surface", "capacity"})
_PAST_SITES = frozenset({"place of construction", "place of signing"})
_OF_PART = re.compile(r"(?P<relation>.+) of the (?P<part>[a-z][a-z'’ \-]*)")


@lru_cache(maxsize=1024)
def words_of(relation: str, unit: str = "") -> RelationWords:
    """Return the words for a relation."""
    event = relation.removeprefix("year of ").removeprefix("date of ")
    if event != relation and event in _DONE:
        words = _event(event)
        return words if relation.startswith("year") else words._replace(ask="On which date")
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
                past=whole.past,
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
        less=f"{past}before {{v}}",
        more=f"{past}after {{v}}",
        least=f"{past}first",
        most=f"{past}last",
        event=event,
    )


def _count(unit: str) -> RelationWords:
    stem = _HOLDERS.get(unit, "")
    return RelationWords(
        _VERBS[stem] if stem else HAVE,
        unit in {"sailors", "patents", "pupils", "children"},
        ask=f"How many {unit}",
        less=f"fewer than {{v}} {unit}",
        more=f"more than {{v}} {unit}",
        least=f"the fewest {unit}",
        most=f"the most {unit}",
        unit=unit,
        counted=True,
    )


def _extent(relation: str, unit: str) -> RelationWords:
    plain, most, least = _ADJECTIVES[relation]
    return RelationWords(
        BE,
        False,
        ask=f"How many {unit} {plain}" if unit else f"How {plain}",
        less=f"less than {{v}} {plain}",
        more=f"more than {{v}} {plain}",
        least=f"the {least}",
        most=f"the {most}",
        unit=unit,
    )


def _special(relation: str, unit: str) -> RelationWords | None:
    match relation:
        case _ if relation in _LIVES:
            done = _LIVES[relation]
            return RelationWords(BE, True, ask="Where", asked=done)
        case _ if relation in _SITES:
            done = _SITES[relation]
            past = relation in _PAST_SITES
            return RelationWords(BE, past, ask="Where", asked=done)
        case "namesake":
            return RelationWords(BE, False, ask="After whom or what", asked="named")
        case "weight":
            return _measure("weigh", unit, "the heaviest", "the lightest")
        case "price":
            return _measure("cost", unit, "the most expensive", "the cheapest")
        case "duration":
            return RelationWords(
                _VERBS["last"],
                True,
                ask=f"How many {unit}" if unit else "How long",
                less="for less than {v}",
                more="for more than {v}",
                least="for the shortest time",
                most="longest",
                unit=unit,
            )
        case "range":
            return _measure("reach", unit, "", "")._replace(least="the least far", most="farthest")
        case "kind":
            return RelationWords(BE, False, ask="What kind of thing")
        case _:
            pass
    if relation in _DEEDS:
        done = _DEEDS[relation]
        return RelationWords(BE, True, asks=f"Who {DONE_BY.get(done, done)} {{e}}?")
    return None


def _measure(stem: str, unit: str, most: str, least: str) -> RelationWords:
    # `weighs 9 tonnes`, but `is the heaviest`.
    return RelationWords(
        _VERBS[stem],
        False,
        ask=f"How many {unit}" if unit else "How much",
        less="less than {v}",
        more="more than {v}",
        least=f"+{least}",
        most=f"+{most}",
        unit=unit,
    )


def _role(relation: str, unit: str) -> RelationWords:
    """Return the words for a role, such as `captain`."""
    head = relation.split(" of ")[0].split()[-1]
    person = head in PERSONS
    return _plain(relation, unit)._replace(
        asks=f"{'Who' if person else 'What'} {{is}} the {relation} of {{e}}?",
        past=person and relation != "owner",
    )


def _plain(relation: str, unit: str) -> RelationWords:
    if _DATED.search(relation):
        return RelationWords(
            HAVE,
            False,
            less=f"{{a}} {relation} before {{v}}",
            more=f"{{a}} {relation} after {{v}}",
            least=f"the earliest {relation}",
            most=f"the latest {relation}",
        )
    most, least = ("largest", "smallest") if relation in _SIZES else ("highest", "lowest")
    return RelationWords(
        HAVE,
        False,
        less=f"{{a}} {relation} of less than {{v}}",
        more=f"{{a}} {relation} of more than {{v}}",
        least=f"the {least} {relation}",
        most=f"the {most} {relation}",
        unit=unit,
    )
