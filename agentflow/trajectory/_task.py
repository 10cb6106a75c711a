"""A task: a question with what is expected, and the episodes in which a team works on it.

Each request below is everything that its role may know, typed, and each answer is what a model's output is constrained
to and decoded into. An episode is its exchanges in order: whoever reads them knows all that was asked and answered.
"""

from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct, field

from agentflow.trajectory._node import Action, Blob, Failure
from agentflow.trajectory._roles import ToolCard

__all__ = [
    "AnalysisRequest",
    "Assessment",
    "Command",
    "CommandRequest",
    "DecidedStep",
    "Decision",
    "DecisionRequest",
    "Ending",
    "Memory",
    "NextStep",
    "NextStepRequest",
    "QueryAnalysis",
    "Solution",
    "SolutionRequest",
    "Summary",
    "SummaryRequest",
    "Task",
    "TaskRequest",
    "Turn",
    "VerificationRequest",
    "Words",
]


class Task(Struct, frozen=True, kw_only=True):
    """A question, and what is known of its answer."""

    index: int
    """Its place in its file."""
    id: str
    """Unique in its file."""
    question: str
    """What is asked."""
    references: tuple[str, ...] = ()
    """Right answers, each of them enough; empty: not known."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of tools that this task fixes: they win over the model's, which is not shown them."""
    images: tuple[Blob, ...] = ()
    """Pictures that belong to the question."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else its file says of it: options, level, source."""


class QueryAnalysis(Struct, frozen=True):
    """The planner's view of a question, before anything is done."""

    concise_summary: str
    """What is asked."""
    required_skills: str
    """What it takes."""
    relevant_tools: str
    """Which tools help, and how."""
    additional_considerations: str
    """What else is to be kept in mind."""


class NextStep(Struct, frozen=True):
    """The planner's action: what is to be done next, and by which tool."""

    justification: str
    """Why this, now."""
    context: str
    """All that the executor needs to know: it sees nothing else of what was done before."""
    sub_goal: str
    """What is to come of it."""
    tool_name: str
    """The tool."""


class Command(Struct, frozen=True):
    """The executor's call of the tool that was named."""

    analysis: str
    """What the call has to achieve."""
    arguments: dict[str, Any]
    """Of the tool's own schema."""


class Assessment(StrEnum):
    """What memory is worth for the question."""

    COMPLETE = "complete"
    """It answers the question."""
    INCOMPLETE = "incomplete"
    """Something is missing."""
    INCONSISTENT = "inconsistent"
    """It contradicts itself."""
    UNVERIFIED = "needs_verification"
    """It answers the question, but rests on something that should be checked."""
    AMBIGUOUS = "ambiguous"
    """It can be read in several ways."""


class Decision(Struct, frozen=True):
    """The verifier's word on memory."""

    analysis: str
    """Why."""
    assessment: Assessment
    """What memory is worth."""
    stop: bool
    """Answer now."""


class DecidedStep(Struct, frozen=True):
    """The planner's word on memory, and what follows from it, in one answer."""

    decision: Decision
    """What memory is worth."""
    next: NextStep | None
    """What is to be done next; `None`: nothing, answer now."""


class Solution(Struct, frozen=True):
    """The generator's answer."""

    working: str
    """How one gets there, step by step, from what memory holds."""
    answer: str
    """The direct answer, as short as can be; empty: not known."""


class Summary(Struct, frozen=True):
    """The oldest part of memory in short."""

    summary: str
    """All of it that the question may need."""


class Words(Struct, frozen=True):
    """How a model wrote an answer."""

    text: str = ""
    """To the letter; empty: as we write it."""
    mark: str = ""
    """The mark of its tokens; empty: they are not known."""


class Turn(Struct, frozen=True, kw_only=True):
    """One entry of memory: what was wanted, what was done, what came back."""

    number: int
    """Its place in the episode, from 1."""
    step: NextStep
    """What the planner wanted."""
    action: Action | None
    """The call; `None`: there was none, `failure` says why."""
    result: str
    """What came back, as roles see it."""
    images: tuple[Blob, ...] = ()
    """Pictures that came back."""
    failure: Failure | None = None
    """Why the call failed, if it did."""
    trouble: str = ""
    """How what it ran ended badly, if it did."""
    decision: Decision | None = None
    """What the verifier said of memory up to here; `None`: it was not asked or could not say."""
    said: Words = Words()
    """How the planner wrote what it wanted: it is shown its own words, to the letter."""
    decided: Words = Words()
    """How the verifier wrote what it said."""
    seconds: float = 0.0
    """When it was over, in seconds from the episode's beginning. No role is shown it."""


class Memory(Struct, frozen=True, kw_only=True):
    """What one episode knows. It only grows; where it gets too long its oldest turns are put in short."""

    summary: str = ""
    """The turns before `turns`, in short; empty: there are none."""
    summarised: int = 0
    """How many turns it stands for."""
    turns: tuple[Turn, ...] = ()
    """The rest, oldest first."""


class AnalysisRequest(Struct, frozen=True, kw_only=True):
    """To the planner: what does this question take?"""

    question: str
    """What is asked."""
    images: tuple[Blob, ...] = ()
    """Pictures that belong to it."""
    instructions: str = ""
    """The user's own words to the planner."""
    tools: tuple[ToolCard, ...]
    """What can be used."""


class NextStepRequest(Struct, frozen=True, kw_only=True):
    """To the planner: what next?"""

    question: str
    """What is asked."""
    images: tuple[Blob, ...] = ()
    """Pictures that belong to it."""
    instructions: str = ""
    """The user's own words to the planner."""
    tools: tuple[ToolCard, ...]
    """What can be used."""
    analysis: QueryAnalysis
    """What the planner made of the question."""
    memory: Memory
    """What is known."""
    turns_left: int
    """How many steps may follow, this one counted."""


class CommandRequest(Struct, frozen=True, kw_only=True):
    """To the executor: call this tool for that."""

    question: str
    """What is asked."""
    step: NextStep
    """What the planner wants."""
    tool: ToolCard
    """The tool."""
    mistake: str = ""
    """Why the call before could not be made; empty: there was none."""
    before: Command | None = None
    """That call."""


class VerificationRequest(Struct, frozen=True, kw_only=True):
    """To the verifier: does memory answer the question?"""

    question: str
    """What is asked."""
    images: tuple[Blob, ...] = ()
    """Pictures that belong to it."""
    tools: tuple[ToolCard, ...]
    """What can be used."""
    analysis: QueryAnalysis
    """What the planner made of the question."""
    memory: Memory
    """What is known."""


class DecisionRequest(Struct, frozen=True, kw_only=True):
    """To the planner, where it is its own verifier: does memory answer the question, and if not, what next?"""

    next: NextStepRequest
    """The same as for the next step alone."""


class SolutionRequest(Struct, frozen=True, kw_only=True):
    """To the generator: answer from what is known."""

    question: str
    """What is asked."""
    images: tuple[Blob, ...] = ()
    """Pictures that belong to it."""
    analysis: QueryAnalysis | None
    """What the planner made of the question; `None`: it could not say."""
    memory: Memory
    """What is known."""


class SummaryRequest(Struct, frozen=True, kw_only=True):
    """To the generator: put the oldest part of memory in short."""

    question: str
    """What is asked."""
    summary: str
    """What was put in short before."""
    turns: tuple[Turn, ...]
    """What follows it."""


class Ending(StrEnum):
    """Why an episode's turns came to an end. It is answered in any case."""

    VERIFIED = "verified"
    """The verifier said stop."""
    TURNS = "turns"
    """All its turns were used."""
    TIME = "time"
    """Its time was over."""
    TOKENS = "tokens"
    """Its tokens were used up."""
    MONEY = "money"
    """Its money was used up."""
    ANSWERED = "answered"
    """A single agent answered by itself."""
    FAILED = "failed"
    """A role could not do its part."""


TaskRequest: TypeAlias = (
    AnalysisRequest
    | NextStepRequest
    | CommandRequest
    | VerificationRequest
    | DecisionRequest
    | SolutionRequest
    | SummaryRequest
)
"""What a role can be asked in an episode."""
