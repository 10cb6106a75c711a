"""Chains of facts over several observations, which lead from the names in a question to its answer."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentflow.offline._statements import SLOT, Statement, read

_HUB = 8
"""Number of hops from one thing from which it counts as a hub."""
_HOPS = 3
"""Maximum number of hops to one thing that are tried, best first."""


class KnownFact(NamedTuple):
    """A fact, and the observations that contain it."""

    fact: Statement
    places: tuple[int, ...]
    """Numbers of these observations, ascending."""


class Hop(NamedTuple):
    """A step from one thing to another."""

    start: str
    start_shown: str
    """The start as written in the middle of a sentence."""
    end: str
    phrase: str
    """Description of the end, with a slot for the start."""
    found: KnownFact
    worth: int
    """Readability score."""


def describe_end(hops: tuple[Hop, ...]) -> str:
    """Return a description of the thing that the hops lead to."""
    phrase = hops[0].start_shown
    for hop in hops:
        phrase = hop.phrase.replace(SLOT, phrase)
    return phrase


class Knowledge(NamedTuple):
    """Facts of all observations together."""

    found: tuple[KnownFact, ...]
    """Facts, each once."""
    classes: dict[str, str]
    """Classes of things."""
    introductions: dict[str, tuple[str, int]]
    """For each class, the sentence that states it, and the first observation with it."""
    hops: dict[str, list[Hop]]
    """Best hops to each thing. Hops from a hub score lower."""


def know(texts: Iterable[str]) -> Knowledge:
    """Read all texts."""
    places: dict[Statement, list[int]] = {}
    classes: dict[str, str] = {}
    introductions: dict[str, tuple[str, int]] = {}
    for number, text in enumerate(texts, start=1):
        reading = read(text)
        for fact in dict.fromkeys(reading.facts):
            places.setdefault(fact, []).append(number)
        for name, class_ in reading.classes.items():
            classes.setdefault(name, class_)
            introductions.setdefault(name, (reading.introductions[name], number))
    found = tuple(KnownFact(fact, tuple(numbers)) for fact, numbers in places.items())
    return Knowledge(found, classes, introductions, _hops(found, classes))


def _hops(found: tuple[KnownFact, ...], classes: dict[str, str]) -> dict[str, list[Hop]]:
    """Return the best hops to each thing. A backward hop is used only if no forward hop has words for it."""
    hops: dict[str, list[Hop]] = {}
    backwards: dict[tuple[str, str], list[Hop]] = {}
    for entry in found:
        fact = entry.fact
        if fact.described and fact.value != fact.subject:
            phrase, worth = fact.described, 6
            if phrase.startswith("the place where"):
                phrase = phrase.replace("the place", f"the {classes.get(fact.value, 'place')}", 1)
                worth = 4
            hops.setdefault(fact.value, []).append(
                Hop(fact.subject, fact.shown, fact.value, phrase, entry, worth)
            )
        if fact.inverse and (class_ := classes.get(fact.subject)):
            phrase = f"the {class_} {fact.inverse}"
            backwards.setdefault((fact.inverse, fact.value), []).append(
                Hop(fact.value, fact.value_shown, fact.subject, phrase, entry, 2)
            )
    for same in backwards.values():
        if len({hop.end for hop in same}) == 1:
            hops.setdefault(same[0].end, []).append(same[0])
    leading = Counter(hop.start for own in hops.values() for hop in own)
    return {
        end: sorted(
            (hop._replace(worth=hop.worth - 2 * min(leading[hop.start], _HUB)) for hop in own),
            key=lambda hop: -hop.worth,
        )
        for end, own in hops.items()
    }


def ways(end: str, hops: dict[str, list[Hop]]) -> Iterator[tuple[Hop, ...]]:
    """Yield the one or two hops that lead to a thing."""
    for hop in hops.get(end, [])[:_HOPS]:
        yield (hop,)
        for far in hops.get(hop.start, [])[:_HOPS]:
            yield (far, hop)
