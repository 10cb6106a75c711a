"""What a tree gives: the paths that were selected and the question-answer pairs that passed every check."""

from msgspec import Struct, field

from agentflow.synthesis._checks import Finding, Grounding
from agentflow.synthesis._selection import Score
from agentflow.trajectory import Region, Tree, Usage

__all__ = ["CitedSpan", "Pair", "ReasoningStep", "RejectedDraft", "SeedResult", "Trajectory"]


class CitedSpan(Struct, frozen=True, omit_defaults=True):
    """A span of an observation, or a part of a picture of it, that a reasoning step rests on."""

    node_id: str
    """Whose observation."""
    quote: str
    """The span, as it stands there; of a picture what it shows."""
    start: int
    """Where it begins in the observation's text."""
    end: int
    """Where it ends."""
    image: str = ""
    """The hash of the picture; empty: it is text."""
    region: Region | None = None
    """Which part of it."""


class ReasoningStep(Struct, frozen=True):
    """One step from question to answer."""

    step: str
    """What is concluded."""
    citations: tuple[CitedSpan, ...]
    """What it rests on."""


class Pair(Struct, frozen=True, kw_only=True):
    """A question with its answer, and how one gets from one to the other."""

    question: str
    """Understandable without the path."""
    answer: str
    """Found in the citations, or computed from them."""
    trajectory_id: str
    """The path that it needs."""
    reasoning_steps: tuple[ReasoningStep, ...]
    """From question to answer."""
    engine: str
    """The model that wrote it, or `offline`."""
    tries: int
    """Which draft it is, from 1."""
    grounding: Grounding
    """Where the answer comes from."""
    answerable: bool | None
    """Whether the model knows the answer without the path; `None`: it was not asked, or did not say."""

    @property
    def id(self) -> str:
        """The pair's id."""
        return f"{self.trajectory_id}_qa_0"

    @property
    def hops(self) -> int:
        """How many observations it needs."""
        return len({citing.node_id for step in self.reasoning_steps for citing in step.citations})


class RejectedDraft(Struct, frozen=True, kw_only=True):
    """A draft that was not good enough."""

    trajectory_id: str
    """The path that it was about."""
    number: int
    """Which draft it was, from 1."""
    question: str
    """Its question."""
    answer: str
    """Its answer."""
    findings: tuple[Finding, ...]
    """What was wrong."""


class Trajectory(Struct, frozen=True, kw_only=True):
    """A selected path."""

    id: str
    """A function of its last node."""
    nodes: tuple[str, ...]
    """The ids of its nodes, the root's first."""
    score: Score
    """What it is worth, in view of those that were chosen before."""


class SeedResult(Struct, frozen=True, kw_only=True):
    """Everything that came of a seed. It is kept in the journal, and the files are made of it."""

    tree: Tree | None = None
    """What grew; `None`: nothing could, and `failure` says why."""
    failure: str = ""
    """Why the seed could not be worked on; empty: it was."""
    trajectories: tuple[Trajectory, ...] = ()
    """The selected paths, in the order in which they were chosen."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """How many paths were not selected, by why."""
    pairs: tuple[Pair, ...] = ()
    """The pairs that passed every check, at most one per path, in the order of the paths."""
    rejected: tuple[RejectedDraft, ...] = ()
    """The drafts that did not, path by path, in the order in which they were written."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """What questions and answers consumed, by role; growing is in the tree."""
    model_failures: dict[str, int] = field(default_factory=dict[str, int])
    """Model calls that failed for good, by kind: those of growing too."""
