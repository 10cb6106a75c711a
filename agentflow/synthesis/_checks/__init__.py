"""Checks of a draft: each is a small function that returns one line about a problem, or an empty text."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from agentflow.synthesis._checks._answer import is_an_answer
from agentflow.synthesis._checks._evidence import (
    Grounding,
    Quoted,
    covers_hops,
    find_citations,
    ground,
    words_of,
)
from agentflow.synthesis._checks._question import asks, hides_answer, is_brief, stands_alone
from agentflow.synthesis._checks._steps import are_enough, say_something
from agentflow.trajectory import Draft, Step

__all__ = ["Check", "CheckedDraft", "Finding", "Grounding", "Quoted", "check", "words_of"]


class Check(StrEnum):
    """Check of a draft. The set is closed: reports count by it."""

    ANSWER = "answer"
    """The answer exists and is short."""
    QUESTION = "question"
    """The question asks something."""
    LEAKAGE = "leakage"
    """The question does not contain its answer."""
    VERBOSITY = "verbosity"
    """The question is not too long."""
    SELF_CONTAINED = "self_contained"
    """The question is understandable without the path."""
    STEPS = "steps"
    """There are enough steps, none empty and none repeated."""
    STEP_CONTENT = "step_content"
    """Each step adds something."""
    CITATIONS = "citations"
    """Each step has citations, and their quotes occur in the observations."""
    MULTI_HOP = "multi_hop"
    """The steps cite more than one observation."""
    PICTURES = "pictures"
    """A model confirms that cited pictures show what the draft claims."""
    GROUNDING = "grounding"
    """The answer is quoted, or computed from quoted text."""
    TOO_EASY = "too_easy"
    """The model can't answer the question without the path."""


class Finding(Struct, frozen=True):
    """Problem that a check found."""

    check: Check
    """The check."""
    reason: str
    """The problem, in one line."""


class CheckedDraft(Struct, frozen=True):
    """Result of the checks of a draft."""

    findings: tuple[Finding, ...]
    """Problems; empty if there is none."""
    quotes: tuple[Quoted, ...] = ()
    """Its citations, located in the observations."""
    grounding: Grounding | None = None
    """Source of its answer."""


def check(draft: Draft, evidence: Sequence[Step], *, least_steps: int, most_words: int) -> CheckedDraft:
    """Run all checks on a draft, and locate its citations."""
    answer = is_an_answer(draft.answer)
    quotes, uncited = find_citations(draft.steps, evidence)
    grounding, ungrounded = (None, "") if answer or uncited else ground(draft.answer, quotes, evidence)
    reasons = {
        Check.ANSWER: answer,
        Check.QUESTION: asks(draft.question),
        Check.LEAKAGE: "" if answer else hides_answer(draft.question, draft.answer),
        Check.VERBOSITY: is_brief(draft.question, most_words),
        Check.SELF_CONTAINED: stands_alone(draft.question),
        Check.STEPS: are_enough(draft.steps, least_steps),
        Check.STEP_CONTENT: say_something(draft.steps, draft.question),
        Check.CITATIONS: uncited,
        Check.MULTI_HOP: "" if uncited or not draft.steps else covers_hops(quotes, evidence),
        Check.GROUNDING: ungrounded,
    }
    findings = tuple(Finding(name, reason) for name, reason in reasons.items() if reason)
    return CheckedDraft(findings, quotes, grounding)
