"""Leads: what a path could look into next, the most promising first."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from agentflow.models._offline._facts import SLOT, Fact, read
from agentflow.models._offline._language import names, passages, read_ids, terms
from agentflow.trajectory import Action, PlanRequest, Verdict

__all__ = ["Leads", "Span", "leads_of", "spans_of"]

_SPANS = 8
"""Spans of years that are worth proposing from one place."""
_SIDES = ("history", "people", "places", "numbers", "origin", "works", "trade", "neighbours")
"""What to ask for when nothing better is left."""


class Span(NamedTuple):
    """Two dated events."""

    earlier: int
    """The year of the one."""
    later: int
    """The year of the other."""
    said: str
    """Both, in words."""


class Leads(NamedTuple):
    """Everything that can be filled into arguments."""

    subjects: tuple[str, ...]
    """Names and words to look for."""
    ids: tuple[str, ...]
    """Documents that were named and not read yet."""
    urls: tuple[str, ...]
    """Addresses that were shown and not visited yet."""
    observed: tuple[str, ...]
    """What was seen, the newest first."""


def leads_of(request: PlanRequest) -> Leads:
    """What the seed and the path offer; newer observations go first, and what was followed is left out."""
    observed = [step.observation for step in reversed(request.path) if step.verdict is Verdict.NEW]
    followed = set(_said([*(step.action for step in request.path), *request.taken]))
    enough = request.count + len(followed)
    subjects = [name for name in _subjects(request.seed, observed, enough) if name.lower() not in followed]
    ids = dict.fromkeys(id_ for text in observed for id_ in read_ids(text) if id_.lower() not in followed)
    urls = dict.fromkeys(url for text in observed for url in _urls(text) if url.lower() not in followed)
    return Leads(tuple(subjects), tuple(ids), tuple(urls), tuple(observed))


def _subjects(seed: str, observed: list[str], enough: int) -> Iterator[str]:
    """Names that were mentioned but have no passage of their own yet, then the other names, then words.

    There are always as many as that are enough, if need be by number.
    """
    headings = {passage.topic for text in observed for passage in passages(text)}
    found: dict[str, None] = {}
    if not observed:
        found.update(dict.fromkeys(names(seed)))
        named = set(terms(" ".join(found)))
        others = [term for term in terms(seed) if term not in named]
        found.setdefault(" ".join(others[:6]) or seed.strip()[:80])
    for text in observed:
        mentioned = names(text)
        found.update(dict.fromkeys(name for name in mentioned if name not in headings))
        found.update(dict.fromkeys(name for name in mentioned if name in headings))
    found.update(dict.fromkeys(names(seed)))
    found.update(dict.fromkeys(terms(seed)))
    main = next((name for name in found if name), "overview")
    found.update(dict.fromkeys(f"{main} {side}" for side in _SIDES))
    found.update(dict.fromkeys(f"{main} {number}" for number in range(2, enough + 2 - len(found))))
    return (name for name in found if name)


def _said(actions: Iterable[Action]) -> Iterator[str]:
    """Every text that stands in the arguments, in lower case."""
    for action in actions:
        for value in action.arguments.values():
            for entry in cast("list[object]", value) if isinstance(value, list) else [value]:
                if isinstance(entry, str):
                    yield entry.lower()


def _urls(text: str) -> Iterator[str]:
    for word in text.split():
        if word.startswith(("https://", "http://")):
            yield word.strip("\"'<>()[].,;")


def spans_of(leads: Leads) -> Iterator[Span]:
    """Pairs of dated events of different things, those of newer observations first."""
    dated: dict[str, Fact] = {}
    for text in leads.observed:
        for fact in read(text).facts:
            if fact.event:
                dated.setdefault(fact.value, fact)
    facts = list(dated.values())
    count = 0
    for index, one in enumerate(facts):
        for other in facts[index + 1 :]:
            if one.subject != other.subject and one.value != other.value:
                earlier, later = sorted((one, other), key=lambda fact: int(fact.value))
                yield Span(int(earlier.value), int(later.value), f"{_told(earlier)} and {_told(later)}")
                count += 1
                break
        if count >= _SPANS:
            return


def _told(fact: Fact) -> str:
    return f"that {fact.event.replace(SLOT, fact.shown)} in {fact.value}"
