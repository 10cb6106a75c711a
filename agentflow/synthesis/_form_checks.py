"""Checks of the words of a question: each is a small function that returns one line about a fault, or an empty text."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from agentflow.facts import BoolValue, instructs, show_value
from agentflow.synthesis._question_draft import Check, Finding, QuestionDraft
from agentflow.text import contains_phrase, word_count


def check_form(draft: QuestionDraft, most_words: int) -> Iterator[Finding]:
    """Yield the faults of a question's words."""
    reasons = {
        Check.QUESTION: asks(draft.question),
        Check.VERBOSITY: is_brief(draft.question, most_words),
        Check.SELF_CONTAINED: stands_alone(draft.question),
        Check.LEAKAGE: hides(draft.question, _secrets(draft)),
        Check.NAMES: names_all(draft.question, draft.given),
    }
    yield from (Finding(check, reason) for check, reason in reasons.items() if reason)


def _secrets(draft: QuestionDraft) -> Iterator[str]:
    """Yield the names that the question must not contain: hidden ones, and the answer unless the reader chooses from names."""
    yield from draft.hidden
    answer = show_value(draft.answer)
    if not isinstance(draft.answer, BoolValue) and answer not in draft.given:
        yield answer


def hides(question: str, names: Iterable[str]) -> str:
    """Return a message if the question contains one of these names, else an empty text."""
    found = [name for name in names if contains_phrase(question, name)]
    return f"the question must not contain {found[0]}" if found else ""


def names_all(question: str, names: Iterable[str]) -> str:
    """Return a message if the question lacks one of these names, else an empty text."""
    missing = [name for name in names if not contains_phrase(question, name)]
    return f"the question has to contain {missing[0]}" if missing else ""


_IMPERATIVES: Final = re.compile(
    r"\W*(?:calculate|compute|count|determine|estimate|find|give|identify|list|name|state)\b", re.IGNORECASE
)


_SOURCE: Final = (
    r"documents?|texts?|passages?|articles?|observations?|snippets?|excerpts?|search results?"
    r"|web ?pages?|tool outputs?|trajectory|trajectories"
)


_SPECIFIED: Final = r"(?!\s+(?:of|between|through|by|engraved|inscribed|carved|called|named|titled|entitled)\b)(?!\s+['\"‘“«])"
"""Words that identify the document."""


_REFERENCES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # Proper names such as the Document Foundation are capitalised and do not match.
        rf"\b(?:[Tt]he|[Tt]h(?:is|at|ese|ose)) (?:(?:given|provided|following|cited|above) )?(?:{_SOURCE})\b{_SPECIFIED}",
        r"\b[Aa]ccording to (?:the )?(?:search|retrieved|provided|given|above|observations?|documents?|results?)\b",
        r"\b(?:[Ff]rom|[Ii]n|[Pp]er|[Tt]o|[Oo]n) the (?:context|evidence|outputs?|results?|sources?)(?=\s*(?:[?.,;:!]|$))",
        r"\b[Oo]bservations? (?:number )?#?\d+\b",
        r"\b(?:[Dd]ocument|[Rr]esult|[Pp]assage|[Hh]it) #?\d+\b",
        r"\b[Tt]he above\b(?!-)",
        r"\b(?:mentioned|described|listed|given|shown|stated|named|quoted|cited|as) (?:above|below|earlier|previously)\b",
        r"\b(?:above|below)[\s-]*mentioned\b|\baforementioned\b",
        r"\b[Tt]he (?:initial |starting )?seed(?: (?:topic|data|question|content|text))?(?=\s*(?:[?.,;:!]|$))",
        r"\b[Tt]he (?:starting seed|initial seed|seed (?:topic|data|question|content|text|mentions|says|describes))\b",
        r"上述|上文|该文档|本文|这篇文章|文档中|搜索结果|观察结果",
    )
)


_PRONOUN: Final = r"(?:it|they|he|she|him|her|them)"


_DANGLING: Final = (
    re.compile(rf"\W*{_PRONOUN}\b", re.IGNORECASE),
    re.compile(r"\W*(?:its|their|his)\b", re.IGNORECASE),
    re.compile(
        rf"\W*(?:(?:who|what|when|where|why|which|how(?: \w+)?|in what year|in which year)\W+)?"
        rf"(?:is|are|was|were|does|do|did|has|have|had|can|could|will|would) {_PRONOUN}\b"
        r"(?! (?:that|who)\b)(?! (?:\w+ ){1,2}(?:that|to|for|than)\b)(?! \w+er (?:in|on|at)\b)",
        re.IGNORECASE,
    ),
    re.compile(r"\W*(?:this|that|these|those) (?:is|was|are|were|has|had)\b", re.IGNORECASE),
    re.compile(
        r"\W*(?:what |who |where |when )?(?:is|was|are|were) (?:this|that|these|those)(?:\s*[?,]| (?:a|an|the)\b)",
        re.IGNORECASE,
    ),
)


def asks(question: str) -> str:
    """Return the reason that this is no question, or an empty text."""
    if word_count(question) < 3:
        return "the question has fewer than three words"
    if instructs(question):
        return "the question contains an instruction: it should only ask"
    if question.rstrip(" \"'”’)").endswith(("?", "？", "؟")) or _IMPERATIVES.match(question):
        return ""
    return "the question does not ask: end it with a question mark"


def is_brief(question: str, most: int) -> str:
    """Return a message if the question is too long, else an empty text."""
    length = word_count(question)
    return f"the question has {length:.0f} words: at most {most}" if length > most else ""


def stands_alone(question: str) -> str:
    """Return the reason that the question can't be understood on its own, or an empty text."""
    for pattern in _REFERENCES:
        found = pattern.search(question)
        if found:
            return f"the question points at something its reader does not see: {found[0].strip()}"
    for pattern in _DANGLING:
        found = pattern.match(question)
        if found:
            return f"the question begins with a pronoun that stands for nothing: {found[0].strip()}"
    return ""
