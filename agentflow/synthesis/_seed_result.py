"""Result of a seed: its tree, the selected paths, and the question-answer pairs that passed every check."""

from msgspec import Struct, field

from agentflow.synthesis._checks import Finding, Grounding
from agentflow.synthesis._selection import Score
from agentflow.tasks import RejectedTask, VerifiableTask
from agentflow.trajectory import Region, Tree, Usage


class CitedSpan(Struct, frozen=True, omit_defaults=True):
    """Span of an observation, or region of a picture of it, cited by a reasoning step."""

    node_id: str
    """Id of the node with the observation."""
    quote: str
    """Text of the span; for a picture, what it shows."""
    start: int
    """Start in the observation's text."""
    end: int
    """End in the observation's text."""
    image: str = ""
    """Hash of the picture; empty for text."""
    region: Region | None = None
    """Region of the picture."""


class ReasoningStep(Struct, frozen=True):
    """Step from question to answer."""

    step: str
    """Conclusion."""
    citations: tuple[CitedSpan, ...]
    """Citations that support it."""


class Pair(Struct, frozen=True, kw_only=True):
    """Question with its answer and the reasoning between them."""

    question: str
    """Question, understandable without the path."""
    answer: str
    """Answer, found in the citations or computed from them."""
    trajectory_id: str
    """Id of the path it was written from."""
    reasoning_steps: tuple[ReasoningStep, ...]
    """Reasoning from question to answer."""
    engine: str
    """Name of the model that wrote it, or `offline`."""
    tries: int
    """Number of the draft, from 1."""
    grounding: Grounding
    """Source of the answer."""
    answerable: bool | None
    """The model knows the answer without the path; `None`: it was not asked, or the call failed."""

    @property
    def id(self) -> str:
        """Id of the pair."""
        return f"{self.trajectory_id}_qa_0"

    @property
    def hops(self) -> int:
        """Number of observations that it cites."""
        return len({citing.node_id for step in self.reasoning_steps for citing in step.citations})


class RejectedDraft(Struct, frozen=True, kw_only=True):
    """Draft that failed a check."""

    trajectory_id: str
    """Id of the path it was written from."""
    number: int
    """Number of the draft, from 1."""
    question: str
    """Its question."""
    answer: str
    """Its answer."""
    findings: tuple[Finding, ...]
    """Problems that the checks found."""


class Trajectory(Struct, frozen=True, kw_only=True):
    """Selected path."""

    id: str
    """Id, derived from its last node."""
    nodes: tuple[str, ...]
    """Ids of its nodes, the root first."""
    score: Score
    """Score, given the paths selected before."""


class SeedResult(Struct, frozen=True, kw_only=True):
    """Result of a seed, stored in the journal; the files are projections of it."""

    tree: Tree | None = None
    """The tree; `None`: growing failed for the reason in `failure`. The journal has it without observations."""
    failure: str = ""
    """Reason that the work on the seed failed; empty if it did not."""
    trajectories: tuple[Trajectory, ...] = ()
    """Selected paths, in the order of selection."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Number of paths not selected, by reason."""
    pairs: tuple[Pair, ...] = ()
    """Accepted pairs, at most one per path, in the order of the paths."""
    rejected: tuple[RejectedDraft, ...] = ()
    """Rejected drafts, by path, in the order in which they were written."""
    tasks: tuple[VerifiableTask, ...] = ()
    """Tasks whose check passed, instead of pairs."""
    rejected_tasks: tuple[RejectedTask, ...] = ()
    """Rejected tasks."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Model usage of writing questions, by role; that of growing is in the tree."""
    model_failures: dict[str, int] = field(default_factory=dict[str, int])
    """Number of model calls that failed for good, by kind, including those of growing."""
