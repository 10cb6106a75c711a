"""Requests to the roles that turn observations into facts and facts into questions."""

from typing import Any

from msgspec import Struct, field

from agentflow.facts._programs import Comparison, Operator
from agentflow.facts._skeletons import QuestionKind
from agentflow.facts._values import ValueKind
from agentflow.trajectory import Action, Blob, Example, Region, Request


class ExtractedFact(Struct, frozen=True):
    """A fact as a role reports it."""

    subject: str
    """Full name of the subject, also where the text has a pronoun."""
    relation: str
    """Noun phrase that fits into "the … of SUBJECT"; `kind` for the class of the subject."""
    value: str
    """Value as the text writes it; without its unit."""
    kind: ValueKind
    """Type of the value."""
    quote: str
    """Shortest verbatim part of the text that states the value; of an image, the content of the region."""
    unit: str = ""
    """Unit of a number, such as `metres` or `inhabitants`."""
    time: str = ""
    """Date to which the statement is limited, if it says so."""
    aliases: tuple[str, ...] = ()
    """Other names of the subject in the text."""
    region: Region | None = None
    """Region of an image that states it."""


class ExtractedSet(Struct, frozen=True):
    """A complete enumeration as a role reports it."""

    description: str
    """Members as a plural noun phrase."""
    members: tuple[str, ...]
    """Their names."""
    quote: str
    """Verbatim part of the text that shows that the enumeration is complete."""


class Extraction(Struct, frozen=True):
    """Facts of a chunk of an observation."""

    facts: tuple[ExtractedFact, ...]
    """Facts, in the order of the text."""
    sets: tuple[ExtractedSet, ...] = ()
    """Complete enumerations."""


class ExtractionRequest(Request[Extraction], frozen=True, kw_only=True):
    """Ask for the facts that a chunk of an observation states."""

    seed: str
    """The subject that is explored."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values given with the seed."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    action: Action
    """Call that returned the observation."""
    text: str
    """The chunk."""
    start: int = 0
    """Start of the chunk in the observation."""
    length: int = 0
    """Length of the observation."""
    images: tuple[Blob, ...] = ()
    """Images of the observation; shown with its first chunk."""


class AliasPair(Struct, frozen=True):
    """Two names that may mean the same thing."""

    first: str
    """A name."""
    second: str
    """Another name."""
    first_context: str
    """Sentence with the first name."""
    second_context: str
    """Sentence with the second name."""


class AliasJudgement(Struct, frozen=True):
    """Answer to an `AliasRequest`."""

    same: tuple[bool, ...]
    """For each pair: both names mean the same thing."""


class AliasRequest(Request[AliasJudgement], frozen=True, kw_only=True):
    """Ask which pairs of names mean the same thing."""

    pairs: tuple[AliasPair, ...]
    """The pairs."""


class TranslationStep(Struct, frozen=True):
    """A step of a program as a role writes it."""

    operator: Operator
    """Operation."""
    inputs: tuple[str, ...]
    """`#1` for the result of step 1; any other text is a name, a number or a date."""
    relation: str = ""
    """Relation, one of those offered; empty if the operation has none."""
    comparison: Comparison = Comparison.EQUAL
    """Comparison, of `where`."""
    time: str = ""
    """Year to which the relation is limited, if the question says so."""


class RejectedWording(Struct, frozen=True):
    """Words for a question that failed a check."""

    question: str
    """The question."""
    reasons: tuple[str, ...]
    """Its faults, one line each."""


class Wording(Struct, frozen=True):
    """Words for a skeleton."""

    question: str
    """The question."""


class WordingRequest(Request[Wording], frozen=True, kw_only=True):
    """Ask for the words of a question. The answer is computed and not part of the request."""

    kind: QuestionKind
    """Kind of the question."""
    program: tuple[str, ...]
    """The program in words, one step each, with the given names and descriptions."""
    answer_kind: ValueKind
    """Type of the answer."""
    unit: str = ""
    """Unit of the answer, for a number."""
    facts: tuple[str, ...]
    """Sentences that state the facts, in the order of the program; hidden names are replaced by placeholders."""
    given: tuple[str, ...]
    """Names that the question has to contain."""
    max_words: int
    """Maximum number of words."""
    seed: str
    """The subject that was explored."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values given with the seed."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    tips: str = ""
    """The user's guidance for questions."""
    examples: tuple[Example, ...] = ()
    """Examples of the wanted style."""
    steps: tuple[TranslationStep, ...] = ()
    """The program as data, with the constants as the question may write them."""
    nouns: tuple[str, ...] = ()
    """Class of the results of each step, such as `ship`; empty where the facts state none."""
    definite: tuple[str, ...] = ()
    """Names that the observations write with `the` in the middle of a sentence."""
    rejected: tuple[RejectedWording, ...] = ()
    """Earlier attempts, oldest first."""


class Translation(Struct, frozen=True):
    """A question as a program."""

    steps: tuple[TranslationStep, ...]
    """Steps; the last one gives the answer."""


class TranslationRequest(Request[Translation], frozen=True, kw_only=True):
    """Ask for the program that a question means. The request contains no facts."""

    question: str
    """The question."""
    relations: tuple[str, ...]
    """Relations that can be used, in alphabetical order; more than the question needs."""
    sets: tuple[str, ...] = ()
    """Descriptions of the closed sets that can be used."""
    sample: int = 0
    """Number of the sample, from 0; samples are independent."""


class EvidencePassage(Struct, frozen=True):
    """A part of an observation that a reader is shown."""

    number: int
    """Number, from 1."""
    text: str
    """Text, with hidden spans replaced by a mark."""
    images: tuple[Blob, ...] = ()
    """Images of the observation."""


class EvidenceAnswer(Struct, frozen=True):
    """Answer of a reader to a question."""

    quotes: tuple[str, ...]
    """Verbatim parts of the passages that it rests on."""
    derivation: str
    """Derivation of the answer from the quotes, in one or two sentences."""
    answers: tuple[str, ...]
    """All answers that fit; none if the passages do not determine it."""


class EvidenceRequest(Request[EvidenceAnswer], frozen=True, kw_only=True):
    """Ask a reader to answer a question from passages. The reader never sees a proposed answer."""

    question: str
    """The question."""
    passages: tuple[EvidencePassage, ...]
    """Passages with and without the facts that it needs."""
    answer_kind: ValueKind
    """Type of the answer."""
    sample: int = 0
    """Number of the sample, from 0; samples are independent."""


class ClosedBookRequest(Request[EvidenceAnswer], frozen=True, kw_only=True):
    """Ask a model to answer a question from its own knowledge."""

    question: str
    """The question."""
    sample: int = 0
    """Number of the sample, from 0; samples are independent."""
