"""Episodes of a team: an analysis, then in each turn a step, its tool call, the result, and the decision to stop."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.journal import Page
from agentflow.models import Prices
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._ledger import (
    EpisodeEnded,
    EpisodeLedger,
    EpisodeSettings,
    Prepare,
    ToolReplay,
)
from agentflow.team._messages import turn_size
from agentflow.team._observations import result_text
from agentflow.team._pool import EffectGate
from agentflow.team._rendering import call_line, cut
from agentflow.team._schemas import card_of, fixed_arguments
from agentflow.team._team import Team
from agentflow.trace import (
    Action,
    ActionOutcome,
    AnalysisRequest,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    Ending,
    Episode,
    Failure,
    Memory,
    ModelText,
    NextStep,
    NextStepRequest,
    Observation,
    QueryAnalysis,
    Reply,
    Solution,
    SolutionRequest,
    Summary,
    SummaryRequest,
    Task,
    Turn,
    VerificationRequest,
)

_NO_ANALYSIS = QueryAnalysis("", "", "", "")
_OWN_ENCODING = ModelText()


class EpisodeAgent(Protocol):
    """An agent that works on tasks: `TeamAgent`, `ToolAgent`, or any class with this method. See docs/team.md."""

    async def solve(
        self, task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None = None
    ) -> Episode:
        """Work on a task. Effects recorded on the page are not repeated.

        :param sandbox: a fresh sandbox for this episode alone; the caller closes it.
        :param prepare: brings another session into the initial state of the task, if the sandbox loses its own.
        :raises RunStopped: if the run cannot continue; completed effects are on the page.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TeamAgent:
    """A team that works on tasks, each in an episode of its own. Implements `EpisodeAgent`. See docs/team.md."""

    team: Team
    """The roles; a supervisor must run their specs."""
    tools: Sequence[Tool]
    """Available tools."""
    settings: EpisodeSettings
    """Limits of an episode."""
    prices: Mapping[str, Prices] | None = None
    """Prices of each role's model, for `max_cost`."""
    gate: EffectGate | None = None
    """Gate for every call of a model or tool; without one they run immediately."""
    clock: Clock = SYSTEM_CLOCK
    """Clock of the time limit."""

    async def solve(
        self, task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None = None
    ) -> Episode:
        """Work on a task; see `EpisodeAgent`."""
        ledger = EpisodeLedger(page, self.settings, prices=self.prices, gate=self.gate, clock=self.clock)
        return await _TeamEpisode(self, task, sandbox, ledger, prepare).solve()


class _TeamEpisode:
    """An episode in progress."""

    def __init__(
        self,
        agent: TeamAgent,
        task: Task,
        sandbox: Sandbox,
        ledger: EpisodeLedger,
        prepare: Prepare | None,
    ) -> None:
        team = agent.team
        self._task = task
        self._team = team
        self._tools = {tool.name: tool for tool in agent.tools}
        offered = self._tools.keys()
        self._cards = {tool.name: card_of(tool, task.kwargs, offered) for tool in agent.tools}
        self._ledger = ledger
        self._settings = agent.settings
        self._replay = ToolReplay(sandbox, self._tools, team.executor.act, ledger.page, prepare)
        self._memory = EpisodeMemory(
            task.question, ledger, team.generator.summarise, max_chars=agent.settings.memory_chars
        )
        self._analysis: QueryAnalysis | None = None

    async def solve(self) -> Episode:
        try:
            ending = await self._work()
        except EpisodeEnded as ended:
            ending = ended.ending
            await self._ledger.close(ending)
        request = SolutionRequest(
            question=self._task.question,
            images=self._task.images,
            analysis=self._analysis,
            memory=self._memory.shown,
            abstain=self._settings.abstain,
        )
        ask = partial(self._team.generator.solve, request)
        reply = await self._ledger.answer("solution", "generator", Solution, ask)
        return Episode(
            task=self._task,
            agent="team",
            ending=Ending.FAILED if reply.value is None and ending is not Ending.TIME else ending,
            analysis=self._analysis,
            turns=tuple(self._memory.turns),
            solution=reply.value,
            failure=reply.failure,
            exchanges=tuple(self._ledger.exchanges),
            seconds=self._ledger.seconds,
            diverged=self._replay.diverged,
        )

    async def _work(self) -> Ending:
        """Run turns until the verifier stops them or all are used."""
        await self._analyse()
        for number in range(1, self._settings.max_turns + 1 if self._tools else 1):
            step, reply = await self._step(number)
            if step is None:
                return Ending.VERIFIED
            turn = await self._turn(number, step)
            self._memory.turns.append(replace(turn, planner_text=_text(reply), reasoning=reply.reasoning))
            if self._settings.verify == "separate" and await self._is_verified(number):
                return Ending.VERIFIED
            if number < self._settings.max_turns:
                await self._memory.shorten()
        return Ending.TURNS

    async def _analyse(self) -> None:
        request = AnalysisRequest(
            question=self._task.question,
            images=self._task.images,
            instructions=self._settings.instructions,
            tools=tuple(self._cards.values()),
        )
        ask = partial(self._team.planner.analyse, request)
        self._analysis = (await self._ledger.ask("analysis", "analyst", QueryAnalysis, ask)).value

    async def _step(self, number: int) -> tuple[NextStep | None, Reply[Any]]:
        """Ask for the next step, and return it with the planner's reply; `None` if the memory suffices.

        :raises EpisodeEnded: if the planner fails.
        """
        request = NextStepRequest(
            question=self._task.question,
            images=self._task.images,
            instructions=self._settings.instructions,
            tools=tuple(self._cards.values()),
            analysis=self._analysis or _NO_ANALYSIS,
            memory=self._memory.shown,
            turns_left=self._settings.max_turns - number + 1,
        )
        planner = self._team.planner
        if self._settings.verify == "separate" or not self._memory.turns:
            ask = partial(planner.next_step, request)
            reply = await self._ledger.ask(f"{number}/next", "planner", NextStep, ask)
            if reply.value is None:
                raise EpisodeEnded(Ending.FAILED)
            return reply.value, reply
        decide = partial(planner.decide, DecisionRequest(next=request))
        reply = await self._ledger.ask(f"{number}/decide", "planner", DecidedStep, decide)
        if (decided := reply.value) is None:
            raise EpisodeEnded(Ending.FAILED)
        self._memory.set_decision(decided.decision)
        return None if decided.decision.stop else decided.next, reply

    async def _is_verified(self, number: int) -> bool:
        """Ask the verifier whether to stop. If it fails, the episode continues."""
        request = VerificationRequest(
            question=self._task.question,
            images=self._task.images,
            tools=tuple(self._cards.values()),
            analysis=self._analysis or _NO_ANALYSIS,
            memory=self._memory.shown,
        )
        ask = partial(self._team.verifier.decide, request)
        reply = await self._ledger.ask(f"{number}/verify", "verifier", Decision, ask)
        if reply.value is None:
            return False
        self._memory.set_decision(reply.value, _text(reply))
        return reply.value.stop

    async def _turn(self, number: int, step: NextStep) -> Turn:
        """Call the tool that the planner named."""
        tool = self._tools.get(step.tool_name) or self._tools.get(step.tool_name.replace(":", "_"))
        if tool is None:
            return self._no_call(number, step, no_such_tool(step.tool_name, self._tools))
        request = CommandRequest(question=self._task.question, step=step, tool=self._cards[tool.name])
        given = await self._try(number, "", request, tool)
        failure = given[2].failure if isinstance(given, tuple) else None
        if isinstance(given, tuple) and failure is not None and failure.kind == ErrorKind.BAD_ARGUMENTS:
            again = replace(request, mistake=failure.message, before=given[0])
            repaired = await self._try(number, "/again", again, tool)
            given = repaired if isinstance(repaired, tuple) else given
        if isinstance(given, Failure):
            return self._no_call(number, step, given)
        _, action, outcome = given
        return self._turn_of(number, step, action, outcome)

    async def _try(
        self, number: int, again: str, request: CommandRequest, tool: Tool
    ) -> tuple[Command, Action, ActionOutcome] | Failure:
        """Ask for the arguments of a call and make it, unless they violate the schema."""
        ask = partial(self._team.executor.command, request)
        reply = await self._ledger.ask(f"{number}/command{again}", "executor", Command, ask)
        if reply.value is None:
            return reply.failure or Failure(ErrorKind.FAILED, "the executor wrote no call")
        action, refusal = bind_action(tool, reply.value.arguments, self._task)
        if refusal is not None:
            return reply.value, action, ActionOutcome(Observation(), refusal)
        return reply.value, action, await self._act(number, f"{number}/act{again}", action)

    async def _act(self, number: int, key: str, action: Action) -> ActionOutcome:
        current = key not in self._ledger.page
        timed = await self._ledger.once(key, ActionOutcome, partial(self._replay.act, action))
        self._ledger.count_tool(key, timed)
        self._replay.add(number, action, timed.value, current=current)
        return timed.value

    def _no_call(self, number: int, step: NextStep, failure: Failure) -> Turn:
        return self._turn_of(number, step, None, ActionOutcome(Observation(), failure))

    def _turn_of(self, number: int, step: NextStep, action: Action | None, outcome: ActionOutcome) -> Turn:
        text = result_text(
            outcome.observation.text,
            self._settings.max_observation_chars,
            self._task.question,
            action,
            step.sub_goal,
            step.justification,
            failure=outcome.failure,
        )
        return turn_of(number, step, action, outcome, text, self._ledger.seconds)


def _text(reply: Reply[Any]) -> ModelText:
    return ModelText(reply.text, reply.mark)


def no_such_tool(name: str, tools: Iterable[str]) -> Failure:
    """Return the failure of a call of an unknown tool."""
    known = ", ".join(tools)
    return Failure(ErrorKind.TOOL_NOT_FOUND, f"there is no tool {name!r}; available tools: {known}")


def bind_action(tool: Tool, arguments: Mapping[str, Any], task: Task) -> tuple[Action, Failure | None]:
    """Return the call of a tool, with the fixed arguments of the task, and the reason if the tool refuses them.

    See docs/team.md.
    """
    action = Action(tool.name, {**arguments, **fixed_arguments(tool, task.kwargs)})
    try:
        tool.bind(action.arguments)
    except ToolFailure as failure:
        return action, Failure(failure.kind, failure.message)
    return action, None


def turn_of(
    number: int, step: NextStep, action: Action | None, outcome: ActionOutcome, text: str, seconds: float
) -> Turn:
    """Return a turn as shown to the roles.

    :param text: the result as it is shown.
    """
    return Turn(
        number=number,
        step=step,
        action=action,
        result=text,
        images=outcome.observation.blobs,
        failure=outcome.failure,
        trouble=outcome.trouble,
        seconds=seconds,
    )


class EpisodeMemory:
    """Memory of one episode: all turns are kept, and prompts replace the oldest ones by a summary when it is too long."""

    def __init__(
        self,
        question: str,
        ledger: EpisodeLedger,
        summarise: Callable[[SummaryRequest], Awaitable[Reply[Summary]]],
        *,
        max_chars: int,
    ) -> None:
        """Start with an empty memory.

        :param max_chars: maximum characters shown to the roles.
        """
        self.turns: list[Turn] = []
        """All turns."""
        self._question = question
        self._ledger = ledger
        self._summarise = summarise
        self._max_chars = max_chars
        self._summary = ""
        self._summarised = 0

    @property
    def shown(self) -> Memory:
        """The memory as shown to the roles."""
        kept = tuple(self.turns[self._summarised :])
        return Memory(summary=self._summary, summarised=self._summarised, turns=kept)

    def set_decision(self, decision: Decision, text: ModelText = _OWN_ENCODING) -> None:
        """Set the decision on the last turn.

        :param text: the decision as the verifier wrote it.
        """
        self.turns[-1] = replace(self.turns[-1], decision=decision, verifier_text=text)

    async def shorten(self) -> None:
        """If the memory is too long, summarise as many of the oldest turns as it takes to halve it.

        :raises EpisodeEnded: if the episode's turns end first.
        """
        sizes = [turn_size(turn) for turn in self.turns[self._summarised :]]
        if len(self._summary) + sum(sizes) <= self._max_chars:
            return
        room, kept = self._max_chars // 2 - sizes[-1], 1
        while kept < len(sizes) and (room := room - sizes[-kept - 1]) >= 0:
            kept += 1
        oldest = tuple(self.turns[self._summarised : len(self.turns) - kept])
        if not oldest:
            return
        request = SummaryRequest(question=self._question, summary=self._summary, turns=oldest)
        key = f"summary/{len(self.turns)}"
        reply = await self._ledger.ask(key, "generator", Summary, partial(self._summarise, request))
        summary = _listed(self._summary, oldest) if reply.value is None else reply.value.summary
        self._summary = cut(summary, self._max_chars // 4)
        self._summarised = len(self.turns) - kept


def _listed(summary: str, turns: tuple[Turn, ...]) -> str:
    """Summarise turns without a model: each call with the beginning of its result."""
    lines = [
        f"{turn.number}. {call_line(turn.action) if turn.action else '-'}: {turn.result}" for turn in turns
    ]
    return "\n".join([summary, *(cut(" ".join(line.split()), 300) for line in lines)]).strip()
