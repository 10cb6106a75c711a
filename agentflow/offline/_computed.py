"""Questions about values that a tool computed from years found on the path."""

import re
from collections.abc import Iterator

from agentflow.offline._chains import Knowledge, KnownFact
from agentflow.offline._facts import SLOT
from agentflow.trajectory import Citation, Draft, DraftStep, Step

LABEL = "years between:"
"""Label that the planner's programs print before a span of years."""

_SPAN = re.compile(r"(?P<later>[12]\d{3}) - (?P<earlier>[12]\d{3})\b")
_PRINTED = re.compile(rf"{LABEL} (?P<years>\d+)")


def computed(evidence: tuple[Step, ...], knowledge: Knowledge) -> Iterator[Draft]:
    """Yield a question about the years between two events for each computed span, newest first."""
    dated = {found.fact.value: found for found in reversed(knowledge.found) if found.fact.event}
    for number, step in reversed(list(enumerate(evidence, start=1))):
        span = _SPAN.search(" ".join(str(value) for value in step.action.arguments.values()))
        printed = _PRINTED.search(step.observation)
        if span is None or printed is None:
            continue
        earlier, later = dated.get(span["earlier"]), dated.get(span["later"])
        if earlier is None or later is None or earlier.fact.subject == later.fact.subject:
            continue
        yield Draft(
            f"How many years passed between {_event(earlier)} and {_event(later)}?",
            printed["years"],
            (
                _dating(earlier),
                _dating(later),
                DraftStep(
                    f"{span['later']} - {span['earlier']} = {printed['years']}.",
                    (
                        *_dating(earlier).citations[-1:],
                        *_dating(later).citations[-1:],
                        Citation(number, printed[0]),
                    ),
                ),
            ),
        )


def _dating(found: KnownFact) -> DraftStep:
    fact = found.fact
    quotes = [quote for quote in (fact.naming, fact.sentence) if quote]
    citations = tuple(Citation(found.places[0], quote) for quote in quotes)
    return DraftStep(f"{fact.ask.replace(SLOT, fact.shown)} {fact.value}.", citations)


def _event(found: KnownFact) -> str:
    """Return for example `the year in which Port Vannick was founded`."""
    return f"the year in which {found.fact.event.replace(SLOT, found.fact.shown)}"
