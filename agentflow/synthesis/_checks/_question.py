"""Checks of the question."""

import re
from typing import Final

from agentflow.text import contains_phrase, word_count

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
    if question.rstrip(" \"'”’)").endswith(("?", "？", "؟")) or _IMPERATIVES.match(question):
        return ""
    return "the question does not ask: end it with a question mark"


def hides_answer(question: str, answer: str) -> str:
    """Return a message if the question contains its answer, else an empty text."""
    return f"the question contains its answer, {answer}" if contains_phrase(question, answer) else ""


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
