"""Leads: subjects that a path can look into next, best first."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from agentflow._typeguards import is_list
from agentflow.offline._language import names, passages, terms
from agentflow.offline._statements import Statement, read
from agentflow.trace import Action, PlanRequest, Verdict, digest

_SPANS = 8
"""Maximum number of year spans to propose at one node."""
_REFUSED = 2
"""Number of refused proposals after which nearby leads count as taken."""
_SIDES = ("history", "people", "places", "numbers", "origin", "works", "trade", "neighbours")
"""Search words for when no better lead is left."""


class YearSpan(NamedTuple):
    """Two dated events."""

    earlier: int
    """Year of the earlier event."""
    later: int
    """Year of the later event."""
    said: str
    """Both events in words."""


class Leads(NamedTuple):
    """Values that tool arguments can be filled with."""

    subjects: tuple[str, ...]
    """Names and words to search for."""
    ids: tuple[str, ...]
    """Ids of documents that were mentioned and not read yet."""
    urls: tuple[str, ...]
    """URLs that were shown and not visited yet."""
    observed: tuple[str, ...]
    """Observations, newest first."""


def leads_of(request: PlanRequest) -> Leads:
    """Return the leads of a seed and a path: newest observations first, without those already followed."""
    observed = [step.text for step in reversed(request.path) if step.verdict is Verdict.NEW]
    followed = set(_argument_texts([*(step.call for step in request.path), *request.taken]))
    enough = request.count + len(followed)
    subjects = [name for name in _subjects(request, observed, enough) if name.lower() not in followed]
    ids = dict.fromkeys(id_ for text in observed for id_ in ids_in(text) if id_.lower() not in followed)
    urls = dict.fromkeys(url for text in observed for url in urls_in(text) if url.lower() not in followed)
    return Leads(tuple(subjects), tuple(ids), tuple(urls), tuple(observed))


def _subjects(request: PlanRequest, observed: list[str], enough: int) -> Iterator[str]:
    """Yield names that were mentioned but have no passage yet, then other names, then words.

    There are always enough of them; if necessary, they are numbered.
    """
    seed = request.seed
    leads: dict[str, None] = {}
    if not observed:
        leads.update(dict.fromkeys(names(seed)))
        named = set(terms(" ".join(leads)))
        others = [term for term in terms(seed) if term not in named]
        leads.setdefault(" ".join(others[:6]) or seed.strip()[:80])
    mentioned = list(_mentioned(request, observed))
    if len(request.taken) >= _REFUSED:
        # Siblings already have the best names: combine two of them, which no sibling does.
        leads.update(dict.fromkeys(f"{first} {second}" for first, second in pairwise(mentioned)))
    leads.update(dict.fromkeys(mentioned))
    leads.update(dict.fromkeys(names(seed)))
    leads.update(dict.fromkeys(terms(seed)))
    main = next((name for name in leads if name), "overview")
    leads.update(dict.fromkeys(f"{main} {side}" for side in _SIDES))
    leads.update(dict.fromkeys(f"{main} {number}" for number in range(2, enough + 2 - len(leads))))
    return (name for name in leads if name)


def _mentioned(request: PlanRequest, observed: list[str]) -> Iterator[str]:
    """Yield names, newest observations first. Each path starts at another one, so that siblings find different things."""
    turn = int(digest([[step.call for step in request.path], request.taken]), 16)
    headings = {passage.topic for text in observed for passage in passages(text)}
    for text in observed:
        mentioned = names(text)
        for group in (
            [name for name in mentioned if name not in headings],
            [name for name in mentioned if name in headings],
        ):
            start = turn % max(1, len(group))
            yield from (*group[start:], *group[:start])


def ids_in(text: str) -> list[str]:
    """Return the ids of documents in a text; those with the least text come first."""
    shown = [(sum(map(len, passage.sentences)), passage.id) for passage in passages(text) if passage.id]
    return [id_ for _, id_ in sorted(shown)]


def _argument_texts(actions: Iterable[Action]) -> Iterator[str]:
    """Yield every text in the arguments of some actions, in lower case."""
    for action in actions:
        for value in action.arguments.values():
            for entry in value if is_list(value) else [value]:
                if isinstance(entry, str):
                    yield entry.lower()


def urls_in(text: str) -> Iterator[str]:
    """Yield the URLs in a text."""
    for word in text.split() if "://" in text else ():
        if word.startswith(("https://", "http://")):
            yield word.strip("\"'<>()[].,;")


def spans_of(leads: Leads) -> Iterator[YearSpan]:
    """Yield pairs of dated events of different subjects, newest observations first."""
    dated: dict[str, Statement] = {}
    for text in leads.observed:
        for fact in read(text).facts:
            if fact.event:
                dated.setdefault(fact.value, fact)
    facts = list(dated.values())
    count = 0
    for index, event in enumerate(facts):
        for other in facts[index + 1 :]:
            if event.subject != other.subject and event.value != other.value:
                earlier, later = sorted((event, other), key=lambda fact: int(fact.value))
                events = " and ".join(f"that {fact.event_shown} in {fact.value}" for fact in (earlier, later))
                yield YearSpan(int(earlier.value), int(later.value), events)
                count += 1
                break
        if count >= _SPANS:
            return
