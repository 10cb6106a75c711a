"""Result of a seed: its tree, the selected paths, and the question-answer pairs that passed every check."""

from msgspec import Struct, field

from agentflow.facts import Claim, Fact, QuestionKind, Value
from agentflow.synthesis._attempts import Attempt, Difficulty, Triage
from agentflow.synthesis._question_draft import Finding, Vote
from agentflow.synthesis._selection import Score
from agentflow.tasks import RejectedTask, VerifiableTask
from agentflow.trajectory import Region, Tree, Usage


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
    """Citations that support it."""


class Pair(Struct, frozen=True, kw_only=True):
    """Question with its answer and the reasoning between them."""

    question: str
    """Question, understandable without the tree."""
    answer: str
    """Answer, computed from the facts."""
    value: Value
    """The answer with its type."""
    kind: QuestionKind
    """Kind of the question."""
    level: int
    """Obfuscation level, from 0 to 3."""
    program: tuple[str, ...]
    """Steps that compute the answer, in words."""
    facts: tuple[Fact, ...]
    """Facts that a reader needs; their number is that of the hops."""
    asks: str
    """Fact that the question asks for, or all of its facts if it computes something from them. Equal over seeds."""
    support: tuple[str, ...]
    """Ids of the fewest nodes that state the facts, in path order."""
    trajectory_id: str
    """Id of the path with these nodes."""
    number: int
    """Number of the pair among those of its path, from 0."""
    reasoning_steps: tuple[ReasoningStep, ...]
    """Reasoning from question to answer."""
    votes: tuple[Vote, ...]
    """Votes of the checks by models."""
    engine: str
    """Name of the model that wrote it, or `offline`."""
    tries: int
    """Number of the draft, from 1."""
    difficulty: Difficulty | None = None
    """Measured difficulty; `None`: no attempt was made."""

    @property
    def id(self) -> str:
        """Id of the pair."""
        return f"{self.trajectory_id}_qa_{self.number}"

    @property
    def hops(self) -> int:
        """Number of facts that it needs."""
        return len(self.facts)


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

    skeleton_id: str
    """Id of the skeleton it words."""
    kind: QuestionKind
    """Kind of the question."""
    number: int
    """Number of the draft, from 1."""
    question: str
    """Its question."""
    answer: str
    """Its answer."""
    findings: tuple[Finding, ...]
    """Faults that the checks found."""
    votes: tuple[Vote, ...] = ()
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
    facts: int = 0
    """Number of facts extracted."""
    claims: tuple[Claim, ...] = ()
    """The facts without their places, to find contradictions between trees."""
    extraction_faults: dict[str, int] = field(default_factory=dict[str, int])
    """Number of reported facts that could not be used, by fault."""
    skeletons: dict[str, int] = field(default_factory=dict[str, int])
    """Number of skeletons found, by kind."""
    pairs: tuple[Pair, ...] = ()
    """Accepted pairs, in the order of selection of their skeletons."""
    triaged: tuple[TriagedPair, ...] = ()
    """Pairs whose measured difficulty does not fit, in the same order."""
    attempts: tuple[PairAttempts, ...] = ()
    """Attempts at the accepted pairs or tasks."""
    rejected: tuple[RejectedDraft, ...] = ()
    """Rejected drafts, by skeleton, in the order in which they were written."""
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
