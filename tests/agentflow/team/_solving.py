"""Episodes with a scripted model and a diary that remembers what was written in its session."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.engine import EffectGate, EngineContext, EpisodeEngine, EpisodeSettings, run_now
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.journal import Page, Writing
from agentflow.models import Call, Prices
from agentflow.sandbox import Backend, Sandbox, Session, tool
from agentflow.team import TeamAgent
from agentflow.trace import (
    AnalysisRequest,
    Assessment,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    Episode,
    MemoryBlobStore,
    NextStep,
    NextStepRequest,
    QueryAnalysis,
    Solution,
    SolutionRequest,
    Summary,
    SummaryRequest,
    Task,
    VerificationRequest,
)
from tests._pages import written
from tests.agentflow.team._model import FunctionModel, team

TASK = Task(index=0, id="task_1", question="Which year is carved over the door?", references=("1871",))
ANALYSIS = QueryAnalysis("A year.", "Looking.", "diary_write", "Nothing.")
GO_ON = Decision("Not yet.", Assessment.INCOMPLETE, stop=False)
STOP = Decision("That is it.", Assessment.COMPLETE, stop=True)
SOLUTION = Solution("It is carved there.", "1871")


class Pages(list[str]):
    """Lines written in one session."""


class Diary(Backend):
    """Keeps what is written in its session."""

    name = "diary"
    description = "A diary."

    def __init__(self) -> None:
        self.calls: list[str] = []
        """Arguments of all calls, in all sessions."""

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        session.put(Pages())

    @tool(limits=["It forgets nothing."], practices=["Write little."], examples=[{"text": "a door"}])
    async def write(
        self,
        session: Session,
        text: Annotated[str, Field(description="What to write.")],
        ink: Annotated[str, Field(description="In which colour.")] = "blue",
    ) -> str:
        """Write into the diary; gives all that stands there."""
        self.calls.append(text)
        if text == "forbidden":
            raise ToolFailure(ErrorKind.DENIED, "that may not be written")
        if text == "unreadable":
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "that can't be read")
        pages = session.get(Pages)
        pages.append(f"{text} ({ink})")
        return "; ".join(pages)

    @tool(read_only=True)
    async def look(self, what: Annotated[str, Field(description="At what.")]) -> str:
        """Look at something."""
        self.calls.append(what)
        return f"One sees {what}."


class Script:
    """Scripted answers of each role, with defaults."""

    def __init__(self, *, turns: int = 2, **said: Callable[[Any], object]) -> None:
        """Describe it.

        :param turns: how many turns it takes.
        :param said: by kind of request, a function of it: `analysis`, `next`, `command`, `verify`, `decide`, `solution`,
            `summary`.
        """
        self._turns = turns
        self._said = said

    def __call__(self, call: Call[object]) -> object:
        request = call.request
        name = _NAMES.get(type(request), "")
        if name in self._said:
            return self._said[name](request)
        match request:
            case AnalysisRequest():
                return ANALYSIS
            case NextStepRequest():
                return self._next(request)
            case DecisionRequest():
                done = len(request.next.memory.turns) + request.next.memory.summarised
                return (
                    DecidedStep(STOP, None)
                    if done >= self._turns
                    else DecidedStep(GO_ON, self._next(request.next))
                )
            case CommandRequest():
                return Command("Write.", {"text": request.step.context, "ink": None})
            case VerificationRequest():
                done = len(request.memory.turns) + request.memory.summarised
                return STOP if done >= self._turns else GO_ON
            case SolutionRequest():
                return SOLUTION
            case SummaryRequest():
                return Summary(f"{len(request.turns)} turns.")
            case _:
                raise AssertionError(f"nobody asks {request} in an episode")

    @staticmethod
    def _next(request: NextStepRequest) -> NextStep:
        number = len(request.memory.turns) + request.memory.summarised + 1
        return NextStep("Because.", f"line {number}", "One more line.", "diary_write")


_NAMES: dict[type, str] = {
    AnalysisRequest: "analysis",
    NextStepRequest: "next",
    DecisionRequest: "decide",
    CommandRequest: "command",
    VerificationRequest: "verify",
    SolutionRequest: "solution",
    SummaryRequest: "summary",
}


class Book:
    """Journal page in memory that outlives the episode."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def open(self) -> Page:
        return Page(self.entries, self._write)

    async def _write(self, key: str, body: bytes) -> Writing:
        assert key not in self.entries, f"{key} was done twice"
        self.entries[key] = body
        return written()


@asynccontextmanager
async def diary_sandbox(diary: Diary | None = None) -> AsyncGenerator[Sandbox]:
    async with Sandbox(backends=[diary or Diary()]) as sandbox:
        yield sandbox


async def solved(
    answer: Callable[[Call[object]], object],
    *,
    book: Book | None = None,
    diary: Diary | None = None,
    task: Task = TASK,
    tools: Sequence[str] = ("diary_write", "diary_look"),
    prices: Mapping[str, Prices] | None = None,
    gate: EffectGate = run_now,
    clock: Clock = SYSTEM_CLOCK,
    blobs: MemoryBlobStore | None = None,
    **settings: object,
) -> tuple[Episode, FunctionModel]:
    """Run an episode in a fresh sandbox with a team that shares one model; return both."""
    async with diary_sandbox(diary) as sandbox, team(answer, blobs=blobs) as (members, model):
        engine = EpisodeEngine(
            agent=TeamAgent(members),
            tools=await sandbox.tools(list(tools)) if tools else [],
            settings=EpisodeSettings.model_validate(settings),
            context=EngineContext(prices=prices or {}, gate=gate, clock=clock),
        )
        episode = await engine.solve(task, sandbox, (book or Book()).open())
    return episode, model


def roles(model: FunctionModel) -> list[str]:
    """Roles that were asked, in order."""
    return [call.role for call in model.calls]
