"""The offline generator: an extractive question over several observations, with its reasoning."""

import re
from collections.abc import Iterator

from agentflow.offline._chains import Chain, Knowledge, chains, know
from agentflow.offline._computed import computed
from agentflow.offline._facts import SLOT
from agentflow.offline._riddles import riddles
from agentflow.trajectory import Citation, Draft, DraftStep, WriteRequest

__all__ = ["write"]

_FOREIGN = re.compile(
    r"\b(?:this|these|above|below|the (?:document|observation|passage|text|seed))\b", re.IGNORECASE
)
"""Words that would make a question depend on text that only the path shows."""


def write(request: WriteRequest) -> Draft:
    """Return the best question not rejected yet, preferring one with another answer; an empty one if there is none."""
    questions = {rejection.draft.question for rejection in request.rejected}
    answers = {rejection.draft.answer for rejection in request.rejected}
    second: Draft | None = None
    for draft in _drafts(request):
        if draft.question in questions or _FOREIGN.search(draft.question):
            continue
        if draft.answer not in answers:
            return draft
        second = second or draft
    return second or Draft("", "", ())


def _drafts(request: WriteRequest) -> Iterator[Draft]:
    """Yield all drafts, best first."""
    knowledge = know(request.evidence)
    spans = list(computed(request.evidence, knowledge))
    # A value computed at the end of the path is its topic.
    fresh = [
        draft for draft in spans if draft.steps[-1].citations[-1].observation >= len(request.evidence) - 1
    ]
    yield from fresh
    for chain in chains(knowledge, request):
        yield _draft(chain, knowledge)
    yield from (draft for draft in spans if draft not in fresh)
    yield from riddles(request.evidence)


def _draft(chain: Chain, knowledge: Knowledge) -> Draft:
    steps: list[DraftStep] = []
    start = chain.hops[0]
    if len(chain.hops) == 1:
        sentence, number = knowledge.introductions.get(
            start.start, (start.found.fact.sentence, chain.cited[0])
        )
        class_ = knowledge.classes.get(start.start)
        known = (
            f", known as {'an' if class_[:1] in 'aeio' else 'a'} {class_}"
            if class_ and start.start in knowledge.introductions
            else ""
        )
        steps.append(
            DraftStep(f"The question starts from {start.start_shown}{known}.", (Citation(number, sentence),))
        )
    for hop, number in zip(chain.hops, chain.cited, strict=False):
        fact = hop.found.fact
        phrase = hop.phrase.replace(SLOT, hop.start_shown)
        shown = fact.value_shown if hop.end == fact.value else fact.shown
        steps.append(
            DraftStep(f"{phrase[0].upper()}{phrase[1:]}: {shown}.", _cite(number, fact.naming, fact.sentence))
        )
    fact = chain.target.fact
    asked = fact.ask.replace(SLOT, fact.shown)
    steps.append(DraftStep(f"{asked} {fact.value}.", _cite(chain.cited[-1], fact.naming, fact.sentence)))
    return Draft(chain.question, fact.value, tuple(steps))


def _cite(number: int, *quotes: str) -> tuple[Citation, ...]:
    return tuple(Citation(number, quote) for quote in quotes if quote)
