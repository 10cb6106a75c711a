"""Checks against the observations: citations, hops, and the source of the answer."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from agentflow.text import contains_phrase, find_quote, quantities, quantity, same_quantity
from agentflow.trajectory import Citation, DraftStep, Region, Step

_RUNNERS: Final = frozenset({"bash", "code", "data", "sql"})
_SMALL: Final = frozenset({*map(float, range(13)), 100.0, 1000.0})
"""Numbers that a calculation may contain without a citation: exponents, percents, kilos."""
_LIST: Final = re.compile(r"\s*(?:,\s*and\s|,|;|\sand\s|、|，)\s*")


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
