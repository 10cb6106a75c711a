"""Chains of facts over several observations, from which multi-hop questions are made."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentflow.offline._language import bounded, terms
from agentflow.offline._statements import SLOT, Statement, read
from agentflow.trajectory import WriteRequest, digest

_CLAUSE = re.compile(r"the [^\0]*?(?= (?:where|that) )")
"""Noun before the clause of a description: `the town` of `the town where …`."""
_STUTTER = re.compile(r"\b(\w+) (?:that (?:was|were|is|are) )?\1\b")
_CLOSE = 12
"""Score difference below which chains count as equally good."""
_BEST = 16
"""Maximum number of equally good chains."""
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


class Chain(NamedTuple):
    """Outline of a question: hops, the final fact, and an observation to cite for each."""

    hops: tuple[Hop, ...]
    """Hops, the farthest first."""
    target: KnownFact
    """The fact with the answer."""
    cited: tuple[int, ...]
    """Cited observations, for each hop and then for the target."""
    score: int
    """Score; higher is better."""

    @property
    def question(self) -> str:
        """Return the text of the question."""
        phrase = describe_end(self.hops)
        before, _, after = self.target.fact.ask.partition(SLOT)
        clause = _CLAUSE.match(self.hops[-1].phrase)
        if clause is None or after == "?" or before.endswith(" of "):
            return f"{before}{phrase}{after}"
        # The verb goes before the clause: "was the town founded where …".
        head = clause[0].rstrip()
        return f"{before}{head}{after.rstrip('?')}{phrase.removeprefix(head)}?"


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


def chains(knowledge: Knowledge, request: WriteRequest) -> Iterator[Chain]:
    """Yield every chain that makes a question, best first."""
    last = len(request.evidence)
    ending = request.evidence[-1].observation if request.evidence else ""
    wanted = set(terms(request.seed))
    candidates = [
        chain
        for target in knowledge.found
        for hops in ways(target.fact.subject, knowledge.hops)
        if (chain := _chain(hops, target, wanted, last)) is not None
    ]
    candidates.sort(key=lambda chain: -chain.score)
    best = [chain for chain in candidates[:_BEST] if chain.score > candidates[0].score - _CLOSE]
    # Paths of one tree share most observations; the end of each path decides which question it prefers.
    best.sort(key=lambda chain: digest([ending, chain.question]))
    return (chain for chain in [*best, *candidates[len(best) :]] if _stands(chain))


def ways(end: str, hops: dict[str, list[Hop]]) -> Iterator[tuple[Hop, ...]]:
    """Yield the one or two hops that lead to a thing."""
    for hop in hops.get(end, [])[:_HOPS]:
        yield (hop,)
        for far in hops.get(hop.start, [])[:_HOPS]:
            yield (far, hop)


def _chain(hops: tuple[Hop, ...], target: KnownFact, wanted: set[str], last: int) -> Chain | None:
    things = [hops[0].start, *(hop.end for hop in hops)]
    sentences = {target.fact.sentence, *(hop.found.fact.sentence for hop in hops)}
    if len(set(things)) < len(things) or target.fact.value in things or len(sentences) <= len(hops):
        return None
    cited = _cite([*(hop.found.places for hop in hops), target.places])
    if len(set(cited)) < 2:
        return None
    apart = not set(target.places).intersection(*(hop.found.places for hop in hops))
    score = 30 * (len(hops) - 1) + sum(hop.worth for hop in hops) + 6 * len(set(cited)) + 12 * apart
    score += 10 * (target.places[0] == last) + 5 * (last in cited[:-1])
    score += 8 * target.fact.value[0].isdigit() + 12 * (not wanted.isdisjoint(terms(" ".join(things))))
    score -= 15 * any(_CLAUSE.match(hop.phrase) is not None for hop in hops[:-1])
    return Chain(hops, target, cited, score)


def _cite(places: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Pick one observation for each fact: the newest for the target, and different ones if possible."""
    cited: list[int] = [places[-1][-1]]
    for options in reversed(places[:-1]):
        fresh = [number for number in options if number not in cited]
        cited.append(fresh[0] if fresh else options[0])
    return tuple(reversed(cited))


def _stands(chain: Chain) -> bool:
    """Return true if the question names neither its answer nor an intermediate result."""
    question = chain.question
    hidden = [chain.target.fact.value, *(hop.end for hop in chain.hops)]
    if len(question.split()) > 45 or _STUTTER.search(question):
        return False
    return not any(bounded(name, question) for name in hidden)
