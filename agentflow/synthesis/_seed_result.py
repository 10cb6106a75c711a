"""Result of a seed: its tree, the selected paths, and the question-answer pairs that passed every check."""

from enum import StrEnum
from hashlib import sha256

from msgspec import Struct, field

from agentflow.questions import DraftFault, DraftKind, GateVote, ShownDocument
from agentflow.synthesis._attempts import Attempt, Difficulty, Triage
from agentflow.synthesis._selection import EvidencePath, Score
from agentflow.tasks import RejectedTask, VerifiableTask
from agentflow.trace import Region, Tree, Usage
from agentflow.values import Value


class CitedSpan(Struct, frozen=True, omit_defaults=True):
    """Span of an observation, or region of an image of it, cited by a reasoning step."""

    node_id: str
    """Id of the node with the observation."""
    quote: str
    """Text of the span; for an image, what it shows."""
    start: int
    """Start in the observation's text."""
    end: int
    """End in the observation's text."""
    image: str = ""
    """Hash of the image; empty for text."""
    region: Region | None = None
    """Region of the image."""
    file: str = ""
    """Path of the image, relative to the file of the pairs."""


class ReasoningStep(Struct, frozen=True):
    """Step from question to answer."""

    step: str
    """Conclusion."""
    citations: tuple[CitedSpan, ...]
    """Citations that support it; none if it is computed."""
    computes: str = ""
    """Expression over the values of other steps; empty for a quoted one."""


class UsedDocument(Struct, frozen=True, omit_defaults=True):
    """Document, or result of a tool, that a question needs."""

    id: str
    """Name by which the tools know it: an id, an address, a path, or the call that computed it."""
    title: str
    """Its title; may be empty."""
    complete: bool
    """Its whole text was seen."""
    computed: bool = False
    """It is the result of a call."""
    hash: str = ""
    """SHA-256 of the text that was seen."""
    copies: tuple[str, ...] = ()
    """Other documents with the same text."""
    licence: str = ""
    """Licence of the document, if the settings tell it."""

    @classmethod
    def of(cls, document: ShownDocument, licence: str = "") -> "UsedDocument":
        """Return the record of a document."""
        return cls(
            document.id,
            document.title,
            document.complete,
            document.computed,
            sha256(document.text.encode()).hexdigest(),
            document.copies,
            licence,
        )


class Pair(Struct, frozen=True, kw_only=True):
    """Question with its answer and the reasoning between them."""

    question: str
    """Question, understandable without the tree."""
    answer: str
    """Answer."""
    value: Value
    """The answer with its type."""
    unit: str = ""
    """Unit of a number."""
    kind: DraftKind
    """Kind of the question."""
    asker: str = ""
    """Person who would ask it, and the decision that needs it."""
    documents: tuple[UsedDocument, ...]
    """Documents that it needs."""
    rivals: tuple[str, ...] = ()
    """Wrong answers that are near."""
    support: tuple[str, ...]
    """Ids of the nodes that its steps cite, in path order."""
    path: tuple[str, ...]
    """Ids of the nodes that yield these, with their prerequisites, the root first."""
    trajectory_id: str
    """Id of the path with these nodes."""
    number: int
    """Number of the pair among those of its path, from 0."""
    reasoning_steps: tuple[ReasoningStep, ...]
    """Reasoning from question to answer."""
    votes: tuple[GateVote, ...]
    """Votes of the checks by models."""
    hops: int
    """Number of documents that proved necessary."""
    naturalness: float = 0.0
    """Likelihood that an expert would ask it, from 1 to 5, as readers see it; 0: not asked."""
    known: float | None = None
    """Share of answers from memory that are right; `None`: not asked."""
    disputed: bool = False
    """A model is certain of another answer."""
    engine: str
    """Name of the model that wrote it, or `offline`."""
    proposal: int = 0
    """Number of the proposal among those of its group of documents, from 1."""
    tries: int
    """1: as it was proposed; 2: repaired."""
    difficulty: Difficulty | None = None
    """Measured difficulty; `None`: no attempt was made."""

    @property
    def id(self) -> str:
        """Id of the pair."""
        return f"{self.trajectory_id}_qa_{self.number}"


class Surplus(StrEnum):
    """Reason that an accepted pair is not in the file of pairs. The set is closed: reports count by it."""

    DUPLICATE = "duplicate"
    """An earlier question is nearly the same, or has the same answer from the same documents."""
    KIND = "kind"
    """There are enough pairs of its kind."""
    ANSWER = "answer"
    """There are enough pairs with its answer."""


class TriagedPair(Struct, frozen=True):
    """Pair that passed every check and whose difficulty does not fit."""

    pair: Pair
    """The pair."""
    reason: Triage
    """Reason."""


class TriagedTask(Struct, frozen=True):
    """Task whose check passed and whose measured difficulty does not fit."""

    task: VerifiableTask
    """The task."""
    reason: Triage
    """Reason."""


class PairAttempts(Struct, frozen=True):
    """Attempts at the question of a pair, or at a task."""

    pair: str
    """Id of the pair or task."""
    attempts: tuple[Attempt, ...]
    """The attempts."""


class RejectedDraft(Struct, frozen=True, kw_only=True):
    """Draft that failed a check."""

    kind: DraftKind
    """Kind of the question."""
    number: int
    """Number of the proposal, from 1."""
    tries: int
    """1: as it was proposed; 2: repaired."""
    question: str
    """Its question."""
    answer: str
    """Its answer."""
    findings: tuple[DraftFault, ...]
    """Faults that the checks found."""
    votes: tuple[GateVote, ...] = ()
    """Votes of the checks by models."""


class Trajectory(Struct, frozen=True, kw_only=True):
    """Selected path, or the paths to the nodes of a question that spans several branches."""

    id: str
    """Id, derived from its last node, or from the nodes of the question."""
    nodes: tuple[str, ...]
    """Ids of its nodes in path order, the root first."""
    score: Score
    """Score, given the paths selected before."""
    joined: bool = False
    """It joins the paths to the nodes of a question that spans branches; it was not selected."""

    @classmethod
    def of(cls, tree: Tree, path: EvidencePath, score: Score, *, joined: bool = False) -> "Trajectory":
        """Return the record of a path of a tree."""
        nodes = (tree.nodes[0].id, *(node.id for node in path.nodes))
        return cls(id=path.id, nodes=nodes, score=score, joined=joined)


class SeedResult(Struct, frozen=True, kw_only=True):
    """Result of a seed, stored in the journal; the files are projections of it."""

    tree: Tree | None = None
    """The tree; `None`: growing failed for the reason in `failure`. The journal has it without observations."""
    failure: str = ""
    """Reason that the work on the seed failed; empty if it did not."""
    trajectories: tuple[Trajectory, ...] = ()
    """Selected paths in the order of selection, then those of questions that span branches."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Number of paths not selected, by reason."""
    documents: int = 0
    """Number of documents that it shows."""
    copies: int = 0
    """Number of documents that are copies or translations of these."""
    pairs: tuple[Pair, ...] = ()
    """Accepted pairs, in the order of the proposals."""
    triaged: tuple[TriagedPair, ...] = ()
    """Pairs whose measured difficulty does not fit, in the same order."""
    attempts: tuple[PairAttempts, ...] = ()
    """Attempts at the accepted pairs or tasks."""
    rejected: tuple[RejectedDraft, ...] = ()
    """Rejected drafts, in the order of the proposals."""
    tasks: tuple[VerifiableTask, ...] = ()
    """Tasks whose check passed, instead of pairs."""
    rejected_tasks: tuple[RejectedTask, ...] = ()
    """Rejected tasks."""
    triaged_tasks: tuple[TriagedTask, ...] = ()
    """Tasks whose check passed and whose measured difficulty does not fit."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Model usage of writing and checking questions, by role; that of growing is in the tree."""
    model_failures: dict[str, int] = field(default_factory=dict[str, int])
    """Number of model calls that failed for good, by kind, including those of growing."""
