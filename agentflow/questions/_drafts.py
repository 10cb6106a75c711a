"""Drafts of questions, as a model proposes them, and what checks say about them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentflow.trace import Region
from agentflow.values import ValueKind

Name = Annotated[str, Meta(max_length=200)]
Sentence = Annotated[str, Meta(max_length=600)]
Quote = Annotated[str, Meta(max_length=400)]


class DraftKind(StrEnum):
    """Kind of a question. The set is closed: quotas and reports count by it."""

    WHICH = "which"
    """Choice from a list that the question gives."""
    STEP = "step"
    """Steps at which something breaks or changes on the way from one state to another."""
    FOLLOW_UP = "follow_up"
    """Later repairs, reverts and omissions, or those elsewhere."""
    BRIDGE = "bridge"
    """The answer is found through something in between that is not named."""
    COMPARISON = "comparison"
    """The one of several that has more, came earlier or lasts longer."""
    ORDER = "order"
    """The order of things that the question names."""
    DURATION = "duration"
    """Time between two events, or how long something lasted."""
    SET = "set"
    """All members of a bounded set that meet a condition."""
    COUNT = "count"
    """Number of members of a bounded set that meet a condition."""
    INTERSECTION = "intersection"
    """The one thing that meets several conditions."""
    REFERENCE = "reference"
    """Things that one document refers to in another."""
    COMPUTATION = "computation"
    """A figure that is computed from several."""


KIND_TURNS: Final = (
    (DraftKind.WHICH, DraftKind.REFERENCE, DraftKind.DURATION),
    (DraftKind.STEP, DraftKind.BRIDGE, DraftKind.SET),
    (DraftKind.FOLLOW_UP, DraftKind.COMPARISON, DraftKind.COMPUTATION),
    (DraftKind.ORDER, DraftKind.INTERSECTION, DraftKind.COUNT),
)
"""Kinds that trees prefer, by turns of their seeds: what a tree lacks must not depend on the time at which others end."""

KIND_AIMS: Final[Mapping[DraftKind, str]] = {
    DraftKind.WHICH: "which of several things or versions: read about four to six of one sort",
    DraftKind.STEP: "what breaks or changes at which step: read all steps from one state to another",
    DraftKind.FOLLOW_UP: "what was repaired, reverted or missed later: read the later documents, too",
    DraftKind.BRIDGE: "something found through a thing in between: read about the thing that two documents share",
    DraftKind.COMPARISON: "which has more, came earlier or lasts longer: find the same figure for several things",
    DraftKind.ORDER: "the order of events: find their dates in different documents",
    DraftKind.DURATION: "time between two related events: find the dates of both",
    DraftKind.SET: "all members of a bounded set: read a whole list, and what else is said of its members",
    DraftKind.COUNT: "how many of a bounded set: read a whole list, and what else is said of its members",
    DraftKind.INTERSECTION: "what meets two conditions: read two lists that overlap",
    DraftKind.REFERENCE: "where references lead: follow them from document to document",
    DraftKind.COMPUTATION: "a figure from several: find amounts of one unit in different documents or tables",
}
"""Reading that each kind of question needs, in words for a planner."""


class DraftStep(Struct, frozen=True, omit_defaults=True):
    """Step from the documents to the answer."""

    statement: Sentence
    """Conclusion of the step, in one sentence."""
    passage: int = 0
    """Number of the passage that states it; 0: it is computed from other steps."""
    quote: Quote = ""
    """Verbatim part of the passage that states it."""
    value: Name = ""
    """Number, date or name in the quote with which later steps compute."""
    computes: Name = ""
    """Expression over the values of other steps, such as `days(s1, s2)`."""
    region: Region | None = None
    """Region of the image that states it, if the passage is one."""


class Rival(Struct, frozen=True):
    """Wrong answer that a reader could give."""

    answer: Name
    """The answer."""
    reason: Sentence
    """Reason that it is wrong."""


class Draft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Question with its answer and the reasoning between them, as a model proposes it."""

    kind: DraftKind
    """Kind of the question."""
    asker: Sentence
    """Person who would ask it, and the decision that needs it."""
    question: Annotated[str, Meta(max_length=800)]
    """The question."""
    answer: Name
    """The answer, as short as possible."""
    answer_type: ValueKind
    """Type of the answer."""
    unit: Name = ""
    """Unit of a number, as the question asks for it."""
    precision: Name = ""
    """Precision of a date or duration: day, month or year."""
    documents: tuple[int, ...]
    """Numbers of the documents without any of which it can't be answered."""
    steps: tuple[DraftStep, ...]
    """Steps, in order; the last one gives the answer."""
    reasoning: Sentence = ""
    """Derivation of the answer, with the arithmetic."""
    rivals: tuple[Rival, ...] = ()
    """Wrong answers that are near."""


class GateCheck(StrEnum):
    """Checks of a draft, in their order. The set is closed: reports count by it."""

    FORM = "form"
    """Its words: length, one question, no reference to documents, no leak."""
    TIME = "time"
    """It stays right: nothing current, and only, ever, first, last, most stand in a quote."""
    QUOTES = "quotes"
    """Each quote is in its passage and says what its step states."""
    IMAGES = "images"
    """Images show what is quoted from them."""
    COMPUTATION = "computation"
    """Computed steps give what they state, from exact values."""
    COMPLETENESS = "completeness"
    """Counts, sets and absences rest on whole documents."""
    STEPS = "steps"
    """It has enough steps, and enough documents."""
    DUPLICATE = "duplicate"
    """No other draft asks the same."""
    ONE_DOCUMENT = "one_document"
    """It can't be answered without its other documents."""
    KNOWN = "known"
    """The model that is to learn does not always know the answer."""
    EVIDENCE = "evidence"
    """Readers of all documents give the answer, with its unit and precision."""
    NATURALNESS = "naturalness"
    """Somebody would ask it."""
    REPEATED = "repeated"
    """Calls whose results it rests on give them again."""
    UNIQUE = "unique"
    """Nothing in the corpus gives another answer."""


class DraftFault(Struct, frozen=True):
    """Fault of a draft."""

    check: GateCheck
    """Check that found it."""
    reason: str
    """The fault, in one line."""
    repairable: bool = True
    """Another wording or another answer could fix it."""


class GateVote(Struct, frozen=True, omit_defaults=True):
    """Samples of a model about a draft."""

    check: GateCheck
    """Check that asked."""
    samples: int
    """Number of samples."""
    agreed: int
    """Samples in favour of the draft."""
    answers: tuple[str, ...] = ()
    """Answers of the samples."""
