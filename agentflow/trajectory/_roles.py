"""What the roles are asked and what they answer.

Each request is everything that its role may know, typed. A language model sees it rendered as messages; the
offline engine sees it as it is. Each answer is what a model's output is constrained to and decoded into.
"""

from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from agentflow.trajectory._node import Action, Blob, Failure, Observation, Tokens, Usage, Verdict

__all__ = [
    "Answer",
    "AnswerRequest",
    "Citation",
    "Draft",
    "DraftStep",
    "Example",
    "Judgement",
    "JudgementRequest",
    "Look",
    "LookRequest",
    "Outcome",
    "Plan",
    "PlanRequest",
    "Proposal",
    "Region",
    "Rejection",
    "Reply",
    "RoleRequest",
    "Step",
    "ToolCard",
    "WriteRequest",
]


T = TypeVar("T")


class Reply(Struct, Generic[T], frozen=True):
    """What came of asking a role: its answer, or why there is none. Exactly one of the two is there."""

    value: T | None = None
    """The answer."""
    failure: Failure | None = None
    """Why there is none."""
    usage: Usage = Usage()
    """What asking consumed."""
    tokens: Tokens | None = None
    """What was read and written, token by token, where the engine was asked for it; without an answer that of the last
    one that could not be used."""
    unusable: tuple[Tokens, ...] = ()
    """The same of answers before it that could not be used."""
    said: str = ""
    """The answer as the model wrote it; empty: as we write it."""

    @property
    def mark(self) -> str:
        """The mark of its tokens; empty: they are not known."""
        return "" if self.tokens is None else self.tokens.mark


class ToolCard(Struct, frozen=True):
    """A tool as the planner sees it."""

    name: str
    """Its name, `rag_search`."""
    description: str
    """What it does and when to use it."""
    schema: dict[str, Any]
    """JSON schema of its arguments, without those that the seed fixes."""
    limits: tuple[str, ...] = ()
    """What it can't do."""
    practices: tuple[str, ...] = ()
    """How it is best used."""
    examples: tuple[dict[str, Any], ...] = ()
    """Arguments of good calls."""


class Step(Struct, frozen=True):
    """One node of a path, as roles see it."""

    intent: str
    """Why it was done."""
    action: Action
    """What was done."""
    observation: str
    """What came back, cut in the middle where it is long."""
    verdict: Verdict = Verdict.NEW
    """What it was worth."""
    images: tuple[Blob, ...] = ()
    """Pictures that came back."""


class PlanRequest(Struct, frozen=True, kw_only=True):
    """To the planner: what to do next from here."""

    seed: str
    """What is explored."""
    seed_description: str = ""
    """What seeds are in this run."""
    tips: str = ""
    """The user's guidance for exploring."""
    tools: tuple[ToolCard, ...]
    """What can be called."""
    path: tuple[Step, ...] = ()
    """What was done from the root to here, with what came back."""
    count: int
    """How many different actions are wanted."""
    taken: tuple[Action, ...] = ()
    """Actions that are taken or were refused as duplicates: others are wanted."""
    refused: tuple[str, ...] = ()
    """Why earlier proposals could not be used, one line each."""


class Proposal(Struct, frozen=True):
    """One action that the planner proposes."""

    intent: str
    """Why."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any]
    """What to call it with."""


class Plan(Struct, frozen=True):
    """The planner's answer."""

    proposals: tuple[Proposal, ...]
    """The best first."""


class Outcome(Struct, frozen=True):
    """The executor's answer: what came of an action."""

    observation: Observation
    """What it returned; of a failed call what there was of it."""
    failure: Failure | None = None
    """Why the call failed, if it did."""
    trouble: str = ""
    """How what it ran ended badly, if it did: `exit code 2`, `ValueError: …`."""
    lost: bool = False
    """The state of the session went with it: the shell or interpreter ended, or was killed."""
    usage: Usage = Usage()
    """What models inside of the tool consumed."""


class JudgementRequest(Struct, frozen=True, kw_only=True):
    """To the verifier: what is this observation worth here."""

    seed: str
    """What is explored."""
    path: tuple[Step, ...]
    """What was known before."""
    step: Step
    """What was done now and what came back; its own `verdict` says nothing yet."""
    failure: Failure | None = None
    """Why the call failed, if it did."""
    trouble: str = ""
    """How what it ran ended badly, if it did: `exit code 2`, `ValueError: …`."""
    seen_elsewhere: bool = False
    """The same words came back at another node of the tree before (in path order)."""
    computes: bool = False
    """The tool runs what it is given, and need not speak in the seed's words."""


class Judgement(Struct, frozen=True):
    """The verifier's answer."""

    verdict: Verdict
    """Its word."""
    reason: str = ""
    """One line: why."""


class Example(Struct, frozen=True):
    """A question with its answer that shows the style wanted."""

    question: str
    """The question."""
    answer: str
    """Its answer."""


class Rejection(Struct, frozen=True):
    """A draft that was not good enough."""

    draft: "Draft"
    """The draft."""
    reasons: tuple[str, ...]
    """What was wrong with it, one line each."""


class WriteRequest(Struct, frozen=True, kw_only=True):
    """To the generator: write a question that needs this path, with its answer."""

    seed: str
    """What was explored."""
    seed_description: str = ""
    """What seeds are in this run."""
    tips: str = ""
    """The user's guidance for questions."""
    examples: tuple[Example, ...] = ()
    """Examples of the style wanted."""
    evidence: tuple[Step, ...]
    """The observations that may be cited, numbered from 1 in this order."""
    rejected: tuple[Rejection, ...] = ()
    """Earlier tries, oldest first."""


class Region(Struct, frozen=True):
    """A part of a picture, its edges in shares of the picture's width and height: from 0 at its upper left to 1."""

    picture: int
    """Which picture of the observation, from 1."""
    left: float
    """Its left edge."""
    top: float
    """Its upper edge."""
    right: float
    """Its right edge."""
    bottom: float
    """Its lower edge."""


class Citation(Struct, frozen=True):
    """Where a reasoning step takes its fact from."""

    observation: int
    """The number of the observation, from 1."""
    quote: str
    """The words of the observation that say it, verbatim; of a picture what is to be seen there."""
    region: Region | None = None
    """Where a picture shows it."""


class DraftStep(Struct, frozen=True):
    """One step of the reasoning from question to answer."""

    step: str
    """What is concluded."""
    citations: tuple[Citation, ...]
    """What it rests on."""


class Draft(Struct, frozen=True):
    """The generator's answer: a question, its answer, and how one gets from one to the other."""

    question: str
    """Understandable without the path."""
    answer: str
    """As short as can be."""
    steps: tuple[DraftStep, ...]
    """The reasoning, at least three steps."""


class AnswerRequest(Struct, frozen=True, kw_only=True):
    """To the generator: answer from what you know, to see whether a question needs its path at all."""

    question: str
    """The question."""


class LookRequest(Struct, frozen=True, kw_only=True):
    """To the generator: does the picture show there what a draft says of it?"""

    picture: Blob
    """The picture."""
    region: Region
    """Where."""
    quote: str
    """What is said to be there."""


class Look(Struct, frozen=True):
    """What a look at a picture finds."""

    shows: bool
    """It is there as it was said."""


class Answer(Struct, frozen=True):
    """The answer to a question."""

    answer: str
    """As short as can be; empty: not known."""


RoleRequest: TypeAlias = PlanRequest | JudgementRequest | WriteRequest | AnswerRequest | LookRequest
"""What any role can be asked."""
