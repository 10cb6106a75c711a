"""The checks of a draft: each a small function that says in one line what is wrong, or nothing."""

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
    """What a draft is checked for. The set is closed: reports count by it."""

    ANSWER = "answer"
    """There is an answer, and it is short."""
    QUESTION = "question"
    """It asks something."""
    LEAKAGE = "leakage"
    """The question does not contain its answer."""
    VERBOSITY = "verbosity"
    """The question is not too long."""
    SELF_CONTAINED = "self_contained"
    """The question can be understood without the path."""
    STEPS = "steps"
    """There are enough steps, none empty and none twice."""
    STEP_CONTENT = "step_content"
    """Each step says something of its own."""
    CITATIONS = "citations"
    """Each step cites, and its quotes stand in the observations."""
    MULTI_HOP = "multi_hop"
    """More than one observation is needed."""
    PICTURES = "pictures"
    """Pictures show what is said of them, to a model that looks."""
    GROUNDING = "grounding"
    """The answer is quoted, or computed from what is quoted."""
    TOO_EASY = "too_easy"
    """The model does not know the answer without the path."""


class Finding(Struct, frozen=True):
    """What a check found wrong."""

    check: Check
    """Which check."""
    reason: str
    """What is wrong, in one line."""


class CheckedDraft(Struct, frozen=True):
    """What the checks say of a draft."""

    findings: tuple[Finding, ...]
    """What is wrong with it; empty: nothing."""
    quotes: tuple[Quoted, ...] = ()
    """Where its citations stand."""
    grounding: Grounding | None = None
    """Where its answer comes from."""


def check(draft: Draft, evidence: Sequence[Step], *, least_steps: int, most_words: int) -> CheckedDraft:
    """Everything that is wrong with a draft, and where its citations stand."""
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
