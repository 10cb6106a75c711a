"""Requests to the roles that write and check questions. Readers never see a proposed answer, except to look for others."""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from agentflow.questions._documents import ShownDocument
from agentflow.questions._drafts import Draft, DraftKind, Name, Quote, Sentence
from agentflow.trace import Action, Blob, Example, Region, Request
from agentflow.values import ValueKind


class Person(Struct, frozen=True):
    """Somebody with a job to do who needs several of the documents."""

    job: Sentence
    """The job."""
    need: Sentence
    """Information that the person has to find."""
    documents: tuple[int, ...]
    """Documents that it takes."""


class QuestionProposal(Struct, frozen=True):
    """Questions that a model proposes about documents."""

    people: tuple[Person, ...]
    """People who would open these documents and need more than one."""
    connections: tuple[Sentence, ...]
    """Facts of different documents that together tell something that neither tells alone."""
    drafts: tuple[Draft, ...]
    """Drafts, the best first."""


class ProposalRequest(Request[QuestionProposal], frozen=True, kw_only=True):
    """Ask for questions about documents."""

    documents: tuple[ShownDocument, ...]
    """The documents."""
    count: int
    """Number of drafts to write."""
    keep: int
    """Number of drafts to return, the best of them."""
    kinds: tuple[DraftKind, ...] = ()
    """Kinds that the run still lacks; empty: any."""
    min_documents: int = 2
    """Documents that a question needs at least."""
    min_steps: int = 3
    """Steps that a draft has at least."""
    max_words: int = 85
    """Maximum number of words of a question."""
    seed: str = ""
    """The subject that was explored."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values given with the seed."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    tips: str = ""
    """The user's guidance for questions."""
    examples: tuple[Example, ...] = ()
    """Examples of the wanted style."""
    asked: tuple[str, ...] = ()
    """Questions that exist already."""


class FallenDraft(Struct, frozen=True):
    """Draft that failed a check, with the reasons."""

    number: int
    """Number among those of the request, from 1."""
    draft: Draft
    """The draft."""
    reasons: tuple[str, ...]
    """Its faults, one line each."""


class RepairedDraft(Struct, frozen=True):
    """Draft after a repair."""

    number: int
    """Number of the fallen draft."""
    draft: Draft
    """The new draft."""


class RepairedDrafts(Struct, frozen=True):
    """Answer to a `RepairRequest`."""

    drafts: tuple[RepairedDraft, ...]
    """The repaired drafts; those that can't be repaired are left out."""


class RepairRequest(Request[RepairedDrafts], frozen=True, kw_only=True):
    """Ask for drafts without the faults that checks have found."""

    documents: tuple[ShownDocument, ...]
    """The documents."""
    fallen: tuple[FallenDraft, ...]
    """The drafts."""
    max_words: int = 85
    """Maximum number of words of a question."""
    min_steps: int = 3
    """Steps that a draft has at least."""


class Basis(StrEnum):
    """Ground of an answer."""

    STATED = "stated"
    """A document says it."""
    INFERRED = "inferred"
    """It follows from what documents say."""
    REMEMBERED = "remembered"
    """The reader knows it from elsewhere."""
    GUESSED = "guessed"
    """It is the most likely answer."""


class HiddenAnswer(Struct, frozen=True):
    """Answer of a reader from whom some documents are hidden."""

    answer: Name
    """The answer; the most likely one if no document gives it."""
    basis: Basis
    """Its ground."""
    documents: tuple[int, ...]
    """Documents that it rests on."""


class HiddenRequest(Request[HiddenAnswer], frozen=True, kw_only=True):
    """Ask a reader to answer a question from some documents, guessing if necessary."""

    documents: tuple[ShownDocument, ...]
    """The documents that are shown, with the numbers that they have among all."""
    question: str
    """The question."""


class AskedQuestion(Struct, frozen=True):
    """Question to a reader."""

    number: int
    """Number among those of the request, from 1."""
    question: str
    """The question."""


class ReadingAnswer(Struct, frozen=True, kw_only=True):
    """Answer of a reader to a question."""

    number: int
    """Number of the question."""
    documents: tuple[int, ...]
    """Documents that the answer rests on."""
    derivation: Sentence
    """Derivation from them."""
    answers: tuple[Name, ...]
    """All answers that fit, each with its unit; none if the documents do not determine it."""
    naturalness: Annotated[int, Meta(ge=1, le=5)]
    """Likelihood that an expert would ask this: 5 certainly, 3 possible, 1 never."""


class Readings(Struct, frozen=True):
    """Answer to a `ReadingRequest`."""

    readings: tuple[ReadingAnswer, ...]
    """One for each question."""


class ReadingRequest(Request[Readings], frozen=True, kw_only=True):
    """Ask a reader to answer questions from documents."""

    documents: tuple[ShownDocument, ...]
    """The documents."""
    questions: tuple[AskedQuestion, ...]
    """The questions."""
    sample: int = 0
    """Number of the sample, from 0; samples are independent."""


class Recalled(Struct, frozen=True):
    """Answer of a model from its own knowledge."""

    answer: Name
    """The answer; empty if it is not known."""
    is_certain: bool
    """The model is certain."""


class RecallRequest(Request[Recalled], frozen=True, kw_only=True):
    """Ask a model a question without any text."""

    question: str
    """The question."""
    sample: int = 0
    """Number of the sample, from 0; samples are independent."""


class OtherAnswer(Struct, frozen=True):
    """Another answer to a question."""

    answer: Name
    """The answer."""
    document: int
    """Number of the document that gives it."""
    quote: Quote
    """Verbatim part of it."""
    reason: Sentence
    """Reason that it fits the question as well."""


class OtherAnswers(Struct, frozen=True):
    """Answer to an `OthersRequest`."""

    others: tuple[OtherAnswer, ...]
    """Other answers that fit the question; documents that give another value included."""
    ended: Sentence
    """Date or event since when the answer no longer holds, with its document; empty if there is none."""
    one_document: int
    """Number of a document that answers the question alone; 0: none."""


class OthersRequest(Request[OtherAnswers], frozen=True, kw_only=True):
    """Ask a reader whether documents of the whole corpus give another answer."""

    question: str
    """The question."""
    answer: str
    """The answer that is known."""
    candidates: tuple[str, ...]
    """Answers that may fit as well: rivals, and answers from memory."""
    documents: tuple[ShownDocument, ...]
    """Documents that a search found."""


class ImageFact(Struct, frozen=True):
    """A fact that a region of an image shows."""

    subject: str
    """Full name of the subject."""
    relation: str
    """Noun phrase that fits into "the … of SUBJECT"."""
    value: str
    """Value as the image shows it, without its unit."""
    kind: ValueKind
    """Type of the value."""
    quote: str
    """Content of the region."""
    region: Region
    """The region."""
    unit: str = ""
    """Unit of a number."""


class ImageFacts(Struct, frozen=True):
    """Facts of an image."""

    facts: tuple[ImageFact, ...]
    """The facts, the most specific first."""


class ImageFactsRequest(Request[ImageFacts], frozen=True, kw_only=True):
    """Ask for the facts that an image shows."""

    seed: str
    """The subject that is explored."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values given with the seed."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    action: Action
    """Call that returned the image."""
    image: Blob
    """The image."""
