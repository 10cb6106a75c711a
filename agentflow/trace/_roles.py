"""Requests to the roles of a team, and their answers, in growth and synthesis.

A request holds everything its role may know. Language models see it rendered as messages; the offline engine reads
it directly. `Request[T]` is answered by `T`, the type a model's output is constrained to and decoded into.
"""

from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from agentflow.errors import ModelFailureKind
from agentflow.trace._node import Action, Blob, Failure, Node, Tokens, Usage, Verdict

T_co = TypeVar("T_co", covariant=True)


class Request(Struct, Generic[T_co], frozen=True):
    """Base of all requests to a role; `T_co` is the type of the answer."""


class Reply(Struct, Generic[T_co], frozen=True):
    """Result of asking a role: either an answer or a failure, never both."""

    value: T_co | None = None
    """The answer."""
    failure: Failure | None = None
    """Reason for a missing answer."""
    usage: Usage = Usage()
    """Model calls and tokens used."""
    tokens: Tokens | None = None
    """Exact tokens of the answer, if the engine reports them; without an answer, those of the last unusable one."""
    unusable: tuple[Tokens, ...] = ()
    """Exact tokens of earlier answers that could not be used."""
    text: str = field(default="", name="said")
    """The answer as the model wrote it; empty if it equals our own encoding. Without an answer, the last unusable one."""
    reasoning: str = ""
    """The model's reasoning before the answer; empty if the endpoint returns none."""
    prompt: str = ""
    """Hash of the last message of its prompt among the blobs of the run; empty if it is not stored."""

    @property
    def mark(self) -> str:
        """Digest of its tokens; empty if they are unknown."""
        return "" if self.tokens is None else self.tokens.mark

    @property
    def is_unusable(self) -> bool:
        """The model answered, but not usably: the text is malformed, empty, or cut at its token limit."""
        kind = None if self.failure is None else self.failure.kind
        return kind == ModelFailureKind.GARBAGE or (
            kind == ModelFailureKind.TOO_LONG and self.usage.calls > 0
        )


class ToolCard(Struct, frozen=True):
    """Description of a tool for a role."""

    name: str
    """Name of the tool, such as `rag_search`."""
    description: str
    """Purpose of the tool and when to use it."""
    schema: dict[str, Any]
    """JSON schema of its arguments, without those fixed by the seed or the task."""
    limits: tuple[str, ...] = ()
    """Limitations."""
    practices: tuple[str, ...] = ()
    """Recommended use."""
    examples: tuple[dict[str, Any], ...] = ()
    """Arguments of good calls."""


class Proposal(Struct, frozen=True):
    """An action proposed by the planner."""

    intent: str
    """Reason for the action."""
    tool: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments of the call."""


class Plan(Struct, frozen=True):
    """Actions proposed by the planner."""

    proposals: tuple[Proposal, ...]
    """The proposed actions, best first."""


class PlanRequest(Request[Plan], frozen=True, kw_only=True):
    """Ask the planner for the next actions at a node."""

    seed: str
    """The subject to explore."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    tips: str = ""
    """The user's guidance for exploration."""
    aims: tuple[str, ...] = ()
    """Kinds of questions that will be written about what is found; empty: none in particular."""
    tools: tuple[ToolCard, ...]
    """The available tools."""
    path: tuple[Node, ...] = ()
    """Steps from the root to this node."""
    count: int
    """Number of different actions wanted."""
    taken: tuple[Action, ...] = ()
    """Actions already chosen or refused as duplicates; the proposals must differ from them."""
    refused: tuple[str, ...] = ()
    """Reasons for which earlier proposals were refused, one line each."""
    remaining: int = 0
    """Maximum number of actions that can follow on this path, the proposed one included; 0 if it is unknown."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values given with the seed; they fill tool arguments of the same name."""
    inputs: tuple[str, ...] = ()
    """Input files and folders as the tools see them, one line each."""


class Judgement(Struct, frozen=True):
    """The verifier's verdict on an observation."""

    verdict: Verdict
    """The verdict."""
    reason: str = ""
    """The reason, in one line."""


class JudgementRequest(Request[Judgement], frozen=True, kw_only=True):
    """Ask the verifier for its verdict on an observation."""

    seed: str
    """The subject to explore."""
    path: tuple[Node, ...]
    """Steps before this one."""
    step: Node
    """The step to judge."""
    seen_elsewhere: bool = False
    """An earlier node of the tree, in path order, returned the same text."""
    computes: bool = False
    """The tool runs code or commands, so its output need not share words with the seed."""


class Region(Struct, frozen=True):
    """Region of an image; edges are fractions of its width and height, from 0 at the top left to 1."""

    picture: int
    """Number of the image within the observation, from 1."""
    left: float
    """Left edge."""
    top: float
    """Top edge."""
    right: float
    """Right edge."""
    bottom: float
    """Bottom edge."""


class Example(Struct, frozen=True):
    """Example of a question and its answer in the wanted style."""

    question: str
    """The question."""
    answer: str
    """Its answer."""


class Look(Struct, frozen=True):
    """Result of checking a region of an image."""

    shows: bool
    """The region shows what the quote says."""


class LookRequest(Request[Look], frozen=True, kw_only=True):
    """Ask the generator whether a region of an image shows what a draft quotes from it."""

    picture: Blob
    """The image."""
    region: Region
    """The region."""
    quote: str
    """The quoted content."""
