"""Checks of the reasoning steps."""

from collections.abc import Sequence

from agentflow.text import tokens, word_count
from agentflow.trajectory import DraftStep


def are_enough(steps: Sequence[DraftStep], least: int) -> str:
    """Return the reason that there are too few steps, or an empty text; empty and repeated steps are reported, too."""
    if len(steps) < least:
        return f"the reasoning has {len(steps)} steps: at least {least}"
    seen: dict[tuple[str, ...], int] = {}
    for number, step in enumerate(steps, 1):
        words = tuple(tokens(step.step))
        if not words:
            return f"step {number} is empty"
        if words in seen:
            return f"step {number} repeats step {seen[words]}"
        seen[words] = number
    return ""


def say_something(steps: Sequence[DraftStep], question: str) -> str:
    """Return the reason that a step adds nothing, or an empty text."""
    from rapidfuzz import fuzz

    asked = tokens(question)
    for number, step in enumerate(steps, 1):
        words = tokens(step.step)
        if word_count(step.step) < 3:
            return f"step {number} says too little: {step.step.strip()}"
        if asked and fuzz.ratio(words, asked) >= 95:
            return f"step {number} only repeats the question"
    return ""
