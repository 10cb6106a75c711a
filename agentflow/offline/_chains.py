"""Chains of facts over several observations: what a question that needs them all is made of."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentflow.offline._facts import SLOT, Fact, read
from agentflow.offline._language import bounded, terms
from agentflow.trajectory import Step, WriteRequest, digest

__all__ = ["Chain", "Found", "Hop", "Knowledge", "chains", "know", "know_texts", "ways"]

_CLAUSE = re.compile(r"the [^\0]*?(?= (?:where|that) )")
"""What stands before the clause of a description: `the town` of `the town where …`."""
_STUTTER = re.compile(r"\b(\w+) (?:that (?:was|were|is|are) )?\1\b")
_CLOSE = 12
"""Chains whose scores differ by less are as good as each other."""
_BEST = 16
"""As good as each other are this many at most."""
_HUB = 8
"""Ways that lead from a thing, as many as count."""
_HOPS = 3
"""Hops to one thing that are tried, the best ones."""


class Found(NamedTuple):
    """A fact with where it was seen."""

    fact: Fact
    places: tuple[int, ...]
    """The numbers of the observations that hold it, ascending."""


class Hop(NamedTuple):
    """From one thing to another."""

    start: str
    """From whom."""
    start_shown: str
    """It, as it is said in the middle of a sentence."""
    end: str
    """To whom."""
    phrase: str
    """The end in words, with a slot for the start."""
    found: Found
    """The fact it rests on."""
    worth: int
    """How well it reads."""


class Chain(NamedTuple):
    """A question's skeleton: hops, the last fact, and an observation to cite for each."""

    hops: tuple[Hop, ...]
    """The far one first."""
    target: Found
    """The fact that holds the answer."""
    cited: tuple[int, ...]
    """The observations, for each hop and then for the target."""
    score: int
    """The higher, the better."""

    @property
    def question(self) -> str:
        """The question, in words."""
        phrase = self.hops[0].start_shown
        for hop in self.hops:
            phrase = hop.phrase.replace(SLOT, phrase)
        before, _, after = self.target.fact.ask.partition(SLOT)
        clause = _CLAUSE.match(self.hops[-1].phrase)
        if clause is None or after == "?" or before.endswith(" of "):
            return f"{before}{phrase}{after}"
        # The verb goes before the clause: "was the town founded where …".
        head = clause[0].rstrip()
        return f"{before}{head}{after.rstrip('?')}{phrase.removeprefix(head)}?"


class Knowledge(NamedTuple):
    """What the evidence says, all observations together."""

    found: tuple[Found, ...]
    """The facts, each once."""
    classes: dict[str, str]
    """What things are."""
    introductions: dict[str, tuple[str, int]]
    """The sentence that says so, and the first observation that holds it."""
    hops: dict[str, list[Hop]]
    """The best hops to each thing. One from a thing that leads everywhere is worth less."""


def know(evidence: Iterable[Step]) -> Knowledge:
    """Read all observations."""
    return know_texts(step.observation for step in evidence)


def know_texts(texts: Iterable[str]) -> Knowledge:
    """Read all texts."""
    places: dict[Fact, list[int]] = {}
    classes: dict[str, str] = {}
    introductions: dict[str, tuple[str, int]] = {}
    for number, text in enumerate(texts, start=1):
        reading = read(text)
        for fact in dict.fromkeys(reading.facts):
            places.setdefault(fact, []).append(number)
        for name, class_ in reading.classes.items():
            classes.setdefault(name, class_)
            introductions.setdefault(name, (reading.introductions[name], number))
    found = tuple(Found(fact, tuple(numbers)) for fact, numbers in places.items())
    return Knowledge(found, classes, introductions, _hops(found, classes))


def _hops(found: tuple[Found, ...], classes: dict[str, str]) -> dict[str, list[Hop]]:
    """The best hops to each thing. A hop backwards is one only where nothing else fits the words."""
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
    """Every chain that makes a question, the best first."""
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
    # Paths of one tree share most of what they saw; by its own end each prefers another question.
    best.sort(key=lambda chain: digest([ending, chain.question]))
    return (chain for chain in [*best, *candidates[len(best) :]] if _stands(chain))


def ways(end: str, hops: dict[str, list[Hop]]) -> Iterator[tuple[Hop, ...]]:
    """One hop or two that lead to a thing."""
    for hop in hops.get(end, [])[:_HOPS]:
        yield (hop,)
        for far in hops.get(hop.start, [])[:_HOPS]:
            yield (far, hop)


def _chain(hops: tuple[Hop, ...], target: Found, wanted: set[str], last: int) -> Chain | None:
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
    """One observation for each fact, the newest for the target, different ones where that can be had."""
    cited: list[int] = [places[-1][-1]]
    for options in reversed(places[:-1]):
        fresh = [number for number in options if number not in cited]
        cited.append(fresh[0] if fresh else options[0])
    return tuple(reversed(cited))


def _stands(chain: Chain) -> bool:
    """It names neither its answer nor what has to be found on the way."""
    question = chain.question
    hidden = [chain.target.fact.value, *(hop.end for hop in chain.hops)]
    if len(question.split()) > 45 or _STUTTER.search(question):
        return False
    return not any(bounded(name, question) for name in hidden)
