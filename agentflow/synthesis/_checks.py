"""Checks of a draft: each is a small function that returns one line about a problem, or an empty text."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from agentflow.text import (
    contains_phrase,
    find_quote,
    normalise,
    quantities,
    quantity,
    same_quantity,
    tokens,
    word_count,
)
from agentflow.trajectory import Citation, Draft, DraftStep, Region, Step


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


class Grounding(StrEnum):
    """Source of an answer."""

    QUOTED = "quoted"
    """Its words occur in a quote."""
    NUMBER = "number"
    """It equals a quoted number that is written differently."""
    COMPUTED = "computed"
    """A tool computed it from quoted numbers."""
    SEEN = "seen"
    """Its words are in a region of a picture that a model confirms."""


class Quoted(Struct, frozen=True):
    """Citation located in its observation."""

    step: int
    """Index of the reasoning step, from 0."""
    observation: int
    """Index of the observation, from 0."""
    start: int
    """Start of the quote in the observation's text."""
    end: int
    """End of the quote."""
    region: Region | None = None
    """Region of a picture, if that is what is cited. Then there is no span, and a model has to confirm it."""
    said: str = ""
    """Text that the draft claims for the region."""


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


LONGEST_ANSWER: Final = 30
"""Maximum number of words of an answer."""


_NO_ANSWERS: Final = frozenset(
    {"unknown", "n/a", "na", "unclear", "undetermined", "not known", "not available", "not specified", "not stated",
     "not mentioned", "not given", "cannot be determined", "can't be determined", "don't know", "i don't know",
     "i do not know", "no answer", "no information", "it is unknown", "it is not known", "未知", "不知道", "无法确定"}
)  # fmt: skip


def is_an_answer(answer: str) -> str:
    """Return the reason that this is no answer, or an empty text."""
    said = normalise(answer).strip(" .!?\"'。")
    if not any(character.isalnum() for character in said):
        return "the answer is empty"
    if said in _NO_ANSWERS:
        return f"the answer says nothing: {answer.strip()}"
    length = word_count(answer)
    if length > LONGEST_ANSWER:
        return f"the answer has {length:.0f} words: at most {LONGEST_ANSWER}"
    return ""


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


_RUNNERS: Final = frozenset({"bash", "code", "data", "sql"})


_SMALL: Final = frozenset({*map(float, range(13)), 100.0, 1000.0})
"""Numbers that a calculation may contain without a citation: exponents, percents, kilos."""


_LIST: Final = re.compile(r"\s*(?:,\s*and\s|,|;|\sand\s|、|，)\s*")


def find_citations(steps: Sequence[DraftStep], evidence: Sequence[Step]) -> tuple[tuple[Quoted, ...], str]:
    """Locate all quotes, or return the reason that a step is not supported by its citations."""
    found: list[Quoted] = []
    for index, step in enumerate(steps):
        if not step.citations:
            return (), f"step {index + 1} cites nothing"
        for citation in step.citations:
            if not 1 <= citation.observation <= len(evidence):
                return (
                    (),
                    f"step {index + 1} cites observation {citation.observation}: there are 1 to {len(evidence)}",
                )
            if citation.region is not None:
                if wrong := _no_region(citation, citation.region, evidence[citation.observation - 1]):
                    return (), f"step {index + 1} {wrong}"
                said = citation.quote.strip()
                found.append(Quoted(index, citation.observation - 1, 0, 0, citation.region, said))
                continue
            span = find_quote(evidence[citation.observation - 1].observation, citation.quote)
            if span is None:
                quote = citation.quote.strip()[:80]
                return (
                    (),
                    f"step {index + 1} quotes what observation {citation.observation} does not say: {quote}",
                )
            found.append(Quoted(index, citation.observation - 1, *span))
    return tuple(found), ""


def _no_region(citation: Citation, region: Region, step: Step) -> str:
    """Return the reason that the citation is no valid region of a picture of this observation, or an empty text."""
    if not 1 <= region.picture <= len(step.images):
        return f"cites picture {region.picture} of observation {citation.observation}: there are {len(step.images)}"
    if not (0 <= region.left < region.right <= 1 and 0 <= region.top < region.bottom <= 1):
        return "cites a region whose edges are no shares of a picture, from 0 to 1"
    if not citation.quote.strip():
        return "does not say what its region shows"
    return ""


def words_of(quote: Quoted, evidence: Sequence[Step]) -> str:
    """Return the text of a citation."""
    if quote.region is not None:
        return quote.said
    return evidence[quote.observation].observation[quote.start : quote.end]


def covers_hops(quotes: Sequence[Quoted], evidence: Sequence[Step]) -> str:
    """Return the reason that too few observations are cited, or an empty text: two are required if there are two."""
    cited = {quote.observation for quote in quotes}
    least = min(2, len(evidence))
    return f"the steps cite {len(cited)} observation: use at least {least}" if len(cited) < least else ""


def ground(answer: str, quotes: Sequence[Quoted], evidence: Sequence[Step]) -> tuple[Grounding | None, str]:
    """Return the source of the answer, or the reason that it has none."""
    own = [quote for quote in quotes if not _echoes(evidence[quote.observation], answer)]
    spans = [words_of(quote, evidence) for quote in own]
    parts = [part for part in _LIST.split(answer) if part.strip()]
    if any(contains_phrase(span, answer) for span in spans):
        only_seen = all(
            quote.region for quote, span in zip(own, spans, strict=True) if contains_phrase(span, answer)
        )
        return Grounding.SEEN if only_seen else Grounding.QUOTED, ""
    if len(parts) > 1 and all(any(contains_phrase(span, part) for span in spans) for part in parts):
        return Grounding.QUOTED, ""
    if any(_has_number(span, answer) for span in spans):
        return Grounding.NUMBER, ""
    if any(_computes(number, answer, quotes, evidence) for number in {quote.observation for quote in quotes}):
        return Grounding.COMPUTED, ""
    return None, f"the answer, {answer}, is neither in what the steps quote nor computed from it by a tool"


def _has_number(text: str, answer: str) -> bool:
    wanted = quantity(answer)
    return wanted is not None and any(same_quantity(wanted, number) for number in quantities(text))


def _computes(number: int, answer: str, quotes: Sequence[Quoted], evidence: Sequence[Step]) -> bool:
    """Return true if the observation is a tool run that computed the answer from numbers of other observations."""
    run = evidence[number]
    if (
        not _runs(run)
        or _echoes(run, answer)
        or not (contains_phrase(run.observation, answer) or _has_number(run.observation, answer))
    ):
        return False
    elsewhere = [words_of(quote, evidence) for quote in quotes if quote.observation != number]
    cited = [found for span in elsewhere for found in quantities(span)]
    known = {found.value for found in cited} | {
        found.value / 100 for found in cited if found.kind == "percent"
    }
    inputs = {abs(found.value) for found in quantities(_written(run))} - _SMALL
    return bool(inputs) and inputs <= known


def _runs(step: Step) -> bool:
    return re.split(r"[_:]", step.action.tool, maxsplit=1)[0] in _RUNNERS


def _echoes(step: Step, answer: str) -> bool:
    """Return true if the program contained the answer: printing a constant proves nothing."""
    return _runs(step) and contains_phrase(_written(step), answer)


def _written(step: Step) -> str:
    """Return the code that the tool ran, with spaces around operators, so that numbers can be read."""
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in step.action.arguments.values()
    ]
    return re.sub(r"[-+*/=()\[\]{}:;,<>\"']", " ", "\n".join(texts))
