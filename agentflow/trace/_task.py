"""Tasks, the requests for verified ones, the requests and answers of an episode, and the episode itself.

An episode is its exchanges in order: they contain everything that was asked and answered.
"""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Generic

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from agentflow.text import TextWindow, placed_windows
from agentflow.trace._node import Action, Blob, Failure, Isolation, Observation, SourceSpan, Tokens, Usage
from agentflow.trace._roles import Example, Request, T_co, ToolCard

_Name = Annotated[str, Meta(min_length=1)]


class TaskColumn(Struct, frozen=True):
    """Column of a table."""

    name: str
    """Name of the column."""
    type: str
    """Its type, as the database or the file declares it."""
    refers: str = ""
    """`TABLE.COLUMN` that its values refer to; empty if it is no foreign key."""


class TaskTable(Struct, frozen=True, kw_only=True):
    """Table of a database or a file, as shown to the roles."""

    name: str
    """Name of the table or path of the file."""
    columns: tuple[TaskColumn, ...]
    """Its columns."""
    key: tuple[str, ...] = ()
    """Columns of the primary key."""
    rows: int | None = None
    """Number of rows, if known."""
    sample: tuple[tuple[Any, ...], ...] = ()
    """Sample rows."""


class ProposedSolutions(Struct, frozen=True):
    """Solutions from which tasks are made."""

    solutions: tuple[str, ...]
    """Queries or programs, each independent of the others."""


class SolutionsRequest(Request[ProposedSolutions], frozen=True, kw_only=True):
    """Ask the generator for queries or programs worth a question, before there is a question."""

    kind: str
    """Kind of the tasks, such as `text2sql`."""
    language: str
    """Language of a solution, such as `SQL (sqlite)`."""
    seed: str
    """The subject that was explored."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    tips: str = ""
    """The user's guidance for questions."""
    tables: tuple[TaskTable, ...]
    """The tables."""
    known: tuple[str, ...] = ()
    """Solutions that are already used, or failed."""
    count: int
    """Number of solutions wanted."""


class TaskInstruction(Struct, frozen=True):
    """Instruction written from a solution."""

    instruction: str
    """The question or instruction, understandable on its own."""
    ordered: bool = False
    """It asks for rows in a certain order."""


class InstructionRequest(Request[TaskInstruction], frozen=True, kw_only=True):
    """Ask the generator for the question that a solution answers."""

    kind: str
    """Kind of the task, such as `text2sql`."""
    language: str
    """Language of the solution; empty for a list of actions."""
    seed: str
    """The subject that was explored."""
    tips: str = ""
    """The user's guidance for questions."""
    examples: tuple[Example, ...] = ()
    """Examples of the wanted style."""
    tables: tuple[TaskTable, ...] = ()
    """The tables, if there are any."""
    environment: str = ""
    """Description of the initial state, if there are no tables."""
    solution: str
    """The solution."""
    result: str
    """Result of the solution."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Earlier instructions, each with the reason of its rejection."""


class IndependentSolution(Struct, frozen=True):
    """Solution written from the instruction alone."""

    solution: str
    """The query or program; empty if the instruction can't be answered."""


class IndependentSolutionRequest(Request[IndependentSolution], frozen=True, kw_only=True):
    """Ask for a solution of an instruction, by a role that sees neither the solution nor its result."""

    kind: str
    """Kind of the task, such as `text2sql`."""
    language: str
    """Language of the solution."""
    instruction: str
    """The instruction."""
    tables: tuple[TaskTable, ...]
    """The tables."""
    sample: int = 1
    """Number of this sample, from 1."""


class Task(Struct, frozen=True, kw_only=True):
    """A question, with its reference answers where they are known."""

    index: int
    """Position in its file."""
    id: str
    """Identifier, unique in its file."""
    question: str
    """The question."""
    references: tuple[str, ...] = ()
    """Correct answers, any of which suffices; empty if unknown."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tool arguments fixed by this task: they override the model's, which does not see them."""
    images: tuple[Blob, ...] = ()
    """Images that belong to the question."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of its file: options, level, source."""


class QueryAnalysis(Struct, frozen=True):
    """The planner's analysis of a question, before the first turn."""

    concise_summary: str
    """Summary of the question."""
    required_skills: str
    """Skills that the answer requires."""
    relevant_tools: str
    """Useful tools and how to use them."""
    additional_considerations: str
    """Other points to consider."""


class NextStep(Struct, frozen=True):
    """The planner's next step and the tool for it."""

    justification: str
    """Reason for this step at this point."""
    context: str
    """Everything the executor needs to know: it sees none of the previous turns."""
    sub_goal: str
    """Goal of the step."""
    tool_name: str
    """Name of the tool."""


class Command(Struct, frozen=True):
    """The executor's call of the tool that the planner named."""

    analysis: str
    """Goal of the call."""
    arguments: dict[str, Any]
    """Arguments that match the tool's own schema."""


class Assessment(StrEnum):
    """State of the memory with respect to the question."""

    COMPLETE = "complete"
    """It answers the question."""
    INCOMPLETE = "incomplete"
    """Something is missing."""
    INCONSISTENT = "inconsistent"
    """It contradicts itself."""
    UNVERIFIED = "needs_verification"
    """It answers the question but relies on something that should be checked."""
    AMBIGUOUS = "ambiguous"
    """It can be read in several ways."""


class Decision(Struct, frozen=True):
    """The verifier's decision on the memory."""

    analysis: str
    """The reason."""
    assessment: Assessment
    """State of the memory."""
    stop: bool
    """Answer now."""


class DecidedStep(Struct, frozen=True):
    """A decision on the memory and the next step, in one answer."""

    decision: Decision
    """The decision."""
    next: NextStep | None
    """The next step; `None` to answer now."""


class Solution(Struct, frozen=True):
    """The generator's answer to a task."""

    working: str
    """Derivation of the answer, step by step, from the memory."""
    answer: str
    """The direct answer, as short as possible; empty if unknown."""


class Summary(Struct, frozen=True):
    """Summary of the oldest turns."""

    summary: str
    """Everything in those turns that the question may need."""


class ModelText(Struct, frozen=True):
    """Text of an answer as the model wrote it."""

    text: str = ""
    """The exact text; empty if it equals our own encoding."""
    mark: str = ""
    """Digest of its tokens; empty if they are unknown."""


class Turn(Struct, frozen=True, kw_only=True):
    """An entry of the memory: a step, its action and the result."""

    number: int
    """Number of the turn, from 1."""
    step: NextStep
    """The planner's step."""
    action: Action | None
    """The tool call; `None` if there was none, see `failure`."""
    result: str
    """The result as shown to the roles."""
    images: tuple[Blob, ...] = ()
    """Images in the result."""
    failure: Failure | None = None
    """Reason for a failed call."""
    trouble: str = ""
    """Error of the program or code that the call ran."""
    decision: Decision | None = None
    """The verifier's decision after this turn; `None` if it was not asked or failed."""
    planner_text: ModelText = field(default=ModelText(), name="said")
    """The step as the planner wrote it, also if it can't be used: its next prompt repeats this text exactly."""
    verifier_text: ModelText = field(default=ModelText(), name="decided")
    """The decision as the verifier wrote it."""
    reasoning: str = ""
    """Reasoning of the planner or the agent before the step. Not shown to the roles."""
    seconds: float = 0.0
    """End of the turn, in seconds since the start of the episode. Not shown to the roles."""
    sources: tuple[SourceSpan, ...] | UnsetType = UNSET
    """Parts of documents in `result`; left out unless the task names the documents that it needs."""

    @property
    def failed(self) -> bool:
        """The call, or the program that it ran, failed."""
        return self.failure is not None or bool(self.trouble)


class Memory(Struct, frozen=True, kw_only=True):
    """Memory of one episode as shown to the roles: the oldest turns may be replaced by a summary."""

    summary: str = ""
    """Summary of the turns before `turns`; empty if there are none."""
    summarised: int = 0
    """Number of turns covered by the summary."""
    turns: tuple[Turn, ...] = ()
    """The remaining turns, oldest first."""


class QuestionRequest(Request[T_co], Generic[T_co], frozen=True, kw_only=True):
    """Request that shows a question with its images."""

    question: str
    """The question."""
    images: tuple[Blob, ...] = ()
    """Images that belong to it."""


class AnalysisRequest(QuestionRequest[QueryAnalysis], frozen=True, kw_only=True):
    """Ask the planner to analyse a question."""

    instructions: str = ""
    """The user's instructions to the planner."""
    tools: tuple[ToolCard, ...]
    """The available tools."""


class NextStepRequest(QuestionRequest[NextStep], frozen=True, kw_only=True):
    """Ask the planner for the next step."""

    instructions: str = ""
    """The user's instructions to the planner."""
    tools: tuple[ToolCard, ...]
    """The available tools."""
    analysis: QueryAnalysis
    """The planner's analysis of the question."""
    memory: Memory
    """The memory so far."""
    turns_left: int
    """Remaining turns, this one included."""


class CommandRequest(Request[Command], frozen=True, kw_only=True):
    """Ask the executor for the arguments of a tool call."""

    question: str
    """The question."""
    step: NextStep
    """The planner's step."""
    tool: ToolCard
    """The tool."""
    mistake: str = ""
    """Reason why the previous call was refused; empty for the first one."""
    before: Command | None = None
    """The previous call."""


class VerificationRequest(QuestionRequest[Decision], frozen=True, kw_only=True):
    """Ask the verifier whether the memory answers the question."""

    tools: tuple[ToolCard, ...]
    """The available tools."""
    analysis: QueryAnalysis
    """The planner's analysis of the question."""
    memory: Memory
    """The memory so far."""
    turns_left: int
    """Remaining turns."""


class DecisionRequest(Request[DecidedStep], frozen=True, kw_only=True):
    """Ask a planner that verifies its own work whether the memory suffices, and for the next step if not."""

    next: NextStepRequest
    """The request for the next step."""


class SolutionRequest(QuestionRequest[Solution], frozen=True, kw_only=True):
    """Ask the generator for the answer to a task."""

    analysis: QueryAnalysis | None
    """The planner's analysis of the question; `None` if it failed."""
    memory: Memory
    """The memory so far."""
    abstain: bool = True
    """The answer may be left empty instead of a blind guess."""


class SummaryRequest(Request[Summary], frozen=True, kw_only=True):
    """Ask the generator for a summary of the oldest turns."""

    question: str
    """The question."""
    summary: str
    """The previous summary."""
    turns: tuple[Turn, ...]
    """The turns that follow it."""


class Ending(StrEnum):
    """Reason for the end of an episode's turns. An answer is attempted in every case."""

    VERIFIED = "verified"
    """The verifier decided to stop."""
    TURNS = "turns"
    """All turns were used."""
    TIME = "time"
    """The time limit was reached."""
    TOKENS = "tokens"
    """The token limit was reached."""
    MONEY = "money"
    """The cost limit was reached."""
    ANSWERED = "answered"
    """A single agent answered."""
    FAILED = "failed"
    """A role failed."""
    PRUNED = "pruned"
    """A search preferred other paths; there is no answer."""


class Exchange(Struct, frozen=True, kw_only=True):
    """A model call of an episode."""

    key: str
    """Position in the episode: `analysis`, `2/next`, `2/command/again`, `solution`."""
    role: str
    """Role that was asked: `analyst`, `planner`, `executor`, `verifier`, `generator`; `agent` for a single agent;
    `tool` for models inside a tool."""
    usage: Usage
    """Usage of the call."""
    failure: Failure | None = None
    """Reason for a missing answer."""
    tokens: Tokens | None = None
    """Exact tokens of the answer, if the engine reports them; without an answer, those of the last unusable one."""
    unusable: tuple[Tokens, ...] = ()
    """Exact tokens of earlier answers that could not be used."""
    reasoning: str = ""
    """The model's reasoning before the answer; empty if the endpoint returns none."""
    seconds: float = 0.0
    """End of the call, in seconds since the start of the episode; 0 in files."""


class TaskVerdict(Struct, frozen=True):
    """Verdict of a task's own verifier on an attempt; see `agentflow.tasks`."""

    passed: bool
    """All conditions hold."""
    reasons: tuple[str, ...] = ()
    """Conditions that do not hold, one line each."""
    error: str = ""
    """Reason that the attempt could not be verified; then it did not pass."""


class BranchPoint(Struct, frozen=True, omit_defaults=True):
    """A point at which an episode parted from others of the same task."""

    position: int
    """Position of its continuation among those that were tried."""
    turns: int
    """Number of turns before the point."""
    calls: int
    """Number of model calls before the point."""
    share: int = 1
    """Number of answers that the paths from here stand for."""
    drawn: int = 1
    """Number of equal continuations that were sampled; one of them was run."""
    isolation: Isolation = Isolation.SHARED
    """Way in which the state of its tools was copied: `shared` if there was none, or the first path kept it."""
    reason: str = ""
    """Reason for a replay instead of a fork."""


class Episode(Struct, frozen=True, kw_only=True):
    """A task with everything done for it, from the first call to the answer."""

    task: Task
    """The task."""
    agent: str
    """Kind of agent that worked on it: `team`, `single`, or the name of another one."""
    ending: Ending
    """Reason for the end of its turns."""
    analysis: QueryAnalysis | None = None
    """The planner's analysis; `None` if it was not asked or failed."""
    turns: tuple[Turn, ...] = ()
    """All turns, none replaced by a summary."""
    solution: Solution | None = None
    """The answer; `None` if there is none, see `failure`."""
    failure: Failure | None = None
    """Reason for a missing answer."""
    exchanges: tuple[Exchange, ...] = ()
    """All model calls, in order."""
    seconds: float = 0.0
    """Duration."""
    diverged: tuple[int, ...] = ()
    """Turns whose action was replayed in a fresh sandbox, because the old one was lost, and returned something else."""
    verdict: TaskVerdict | None = None
    """Verdict of the task's own verifier; `None` if it has none."""
    branches: tuple[BranchPoint, ...] | UnsetType = UNSET
    """Points at which it parted from other episodes, in order; unset: it shares nothing."""

    @property
    def path(self) -> tuple[int, ...]:
        """Positions of its continuations at all branch points; empty if it shares nothing."""
        return () if self.branches is UNSET else tuple(point.position for point in self.branches)

    @property
    def drawn(self) -> int:
        """Number of equal episodes that it stands for, because equal continuations were run once."""
        return self.branches[-1].share if self.branches else 1

    @property
    def own_calls(self) -> int:
        """Position of the first model call that no earlier path of the task made."""
        return next((point.calls for point in reversed(self.branches or ()) if point.position), 0)

    @property
    def answer(self) -> str:
        """The direct answer; empty if there is none."""
        return "" if self.solution is None else self.solution.answer

    @property
    def usage(self) -> dict[str, Usage]:
        """Usage by role."""
        usage: dict[str, Usage] = {}
        for exchange in self.exchanges:
            usage[exchange.role] = usage.get(exchange.role, Usage()) + exchange.usage
        return usage

    @property
    def calls(self) -> dict[str, int]:
        """Number of model calls by role."""
        return dict(Counter(exchange.role for exchange in self.exchanges))


class NeededDocument(Struct, frozen=True):
    """Document without which a task can't be answered."""

    id: _Name
    """Name by which the tools know it: an id, an address or a path."""
    copies: tuple[_Name, ...] = ()
    """Other documents with the same text."""
    computed: bool = False
    """It is the result of a call, such as a query, and no document."""


def needed_documents(task: Task, *, strict: bool = False) -> tuple[NeededDocument, ...]:
    """Return the documents that a task needs: its field `documents`, as pairs of a synthesis have it, or a list of ids.

    Results of calls are left out: another call may show the same. See docs/training.md.

    :param strict: refuse a field of another form; otherwise it names no document.
    :raises ValueError: if it is refused.
    """
    value = task.metadata.get("documents")
    try:
        entries = msgspec.convert([] if value is None else value, list[_Name | NeededDocument])
    except msgspec.ValidationError as error:
        if strict:
            raise ValueError(f"documents: {error}; list ids, or objects with an id") from None
        return ()
    named = [NeededDocument(entry) if isinstance(entry, str) else entry for entry in entries]
    return tuple({document.id: document for document in named if not document.computed}.values())


def shown_sources(observation: Observation, result: str) -> tuple[SourceSpan, ...]:
    """Return the parts of documents in a result as it is shown, whole or in windows; `start` and `end` are places in it.

    See docs/training.md.
    """
    return tuple(_shown(observation, result)) if observation.sources else ()


def _shown(observation: Observation, result: str) -> Iterator[SourceSpan]:
    text = observation.text
    begin = result.find(text)
    placed = [(TextWindow(0, len(text)), begin)] if begin >= 0 else list(placed_windows(text, result))
    for source in observation.sources:
        for window, position in placed:
            start, end = max(source.start, window.start), min(source.end, window.end)
            if text[start:end].strip():
                moved = position - window.start
                offset = source.offset + start - source.start if source.offset >= 0 else -1
                yield replace(source, start=start + moved, end=end + moved, offset=offset)
