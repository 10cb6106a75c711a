"""Episodes of a team: an analysis, then in each turn a step, its tool call, the result, and the decision to stop."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from agentflow.engine import EpisodeEnded, OpenEpisode, card_of, no_such_tool, turn_of
from agentflow.errors import ErrorKind
from agentflow.sandbox import Sandbox
from agentflow.team._messages import turn_size
from agentflow.team._rendering import NO_STEP, cut, listed_turns, repeated, result_text, unusable_text
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
    Turn,
    VerificationRequest,
)

_NO_ANALYSIS = QueryAnalysis("", "", "", "")
_OWN_ENCODING = ModelText()


@dataclass(frozen=True)
class TeamAgent:
    """A team that works on tasks. Implements `agentflow.engine.EpisodeAgent`. See docs/team.md."""

    team: Team
    """The roles; a supervisor must run their specs."""

    @property
    def name(self) -> str:
        """Kind of the agent."""
        return "team"

    def begin(self, episode: OpenEpisode) -> "TeamWork":
        """Begin an episode."""
        return TeamWork(self.team, episode)

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool."""
        return await self.team.executor.act(sandbox, action)


class TeamWork:
    """The team's side of one episode."""

    def __init__(self, team: Team, episode: OpenEpisode) -> None:
        task, tools = episode.task, episode.tools
        self._team = team
        self._episode = episode
        self._settings = episode.settings
        self._cards = {name: card_of(tool, task.kwargs, tools.keys()) for name, tool in tools.items()}
        self._memory = EpisodeMemory(episode, team.generator.summarise)

    async def work(self) -> Ending:
        """Run turns until the verifier stops them or all are used."""
        await self._analyse()
        for number in range(1, self._settings.max_turns + 1 if self._episode.tools else 1):
            step, reply = await self._step(number)
            if reply.value is not None and step is None:
                return Ending.VERIFIED
            turn = self._lost_turn(number, reply) if step is None else await self._turn(number, step)
            self._episode.turns.append(replace(turn, planner_text=_text(reply), reasoning=reply.reasoning))
            is_judged = step is not None and self._settings.verify == "separate"
            if is_judged and await self._is_verified(number):
                return Ending.VERIFIED
            if number < self._settings.max_turns:
                await self._memory.shorten()
        return Ending.TURNS

    async def answer(self) -> Reply[Solution]:
        """Ask the generator for the answer."""
        request = SolutionRequest(
            question=self._episode.task.question,
            images=self._episode.task.images,
            analysis=self._episode.analysis,
            memory=self._memory.shown,
            abstain=self._settings.abstain,
        )
        ask = partial(self._team.generator.solve, request)
        return await self._episode.answer("solution", "generator", Solution, ask)

    async def _analyse(self) -> None:
        request = AnalysisRequest(
            question=self._episode.task.question,
            images=self._episode.task.images,
            instructions=self._settings.instructions,
            tools=tuple(self._cards.values()),
        )
        ask = partial(self._team.planner.analyse, request)
        self._episode.analysis = (await self._episode.ask("analysis", "analyst", QueryAnalysis, ask)).value

    async def _step(self, number: int) -> tuple[NextStep | None, Reply[Any]]:
        """Ask for the next step, and return it with the planner's reply; `None` if the memory suffices or the reply is unusable.

        :raises EpisodeEnded: if the planner gives no answer.
        """
        request = NextStepRequest(
            question=self._episode.task.question,
            images=self._episode.task.images,
            instructions=self._settings.instructions,
            tools=tuple(self._cards.values()),
            analysis=self._episode.analysis or _NO_ANALYSIS,
            memory=self._memory.shown,
            turns_left=self._settings.max_turns - number + 1,
        )
        planner = self._team.planner
        if self._settings.verify == "separate" or not self._episode.turns:
            ask = partial(planner.next_step, request)
            reply = await self._episode.ask(f"{number}/next", "planner", NextStep, ask)
            _check_answered(reply)
            return reply.value, reply
        decide = partial(planner.decide, DecisionRequest(next=request))
        reply = await self._episode.ask(f"{number}/decide", "planner", DecidedStep, decide)
        _check_answered(reply)
        if (decided := reply.value) is None:
            return None, reply
        self._memory.set_decision(decided.decision)
        return None if decided.decision.stop else decided.next, reply

    async def _is_verified(self, number: int) -> bool:
        """Ask the verifier whether to stop. If it fails, the episode continues."""
        request = VerificationRequest(
            question=self._episode.task.question,
            images=self._episode.task.images,
            tools=tuple(self._cards.values()),
            analysis=self._episode.analysis or _NO_ANALYSIS,
            memory=self._memory.shown,
            turns_left=self._settings.max_turns - number,
        )
        ask = partial(self._team.verifier.decide, request)
        reply = await self._episode.ask(f"{number}/verify", "verifier", Decision, ask)
        if reply.value is None:
            return False
        self._memory.set_decision(reply.value, _text(reply))
        return reply.value.stop

    def _lost_turn(self, number: int, reply: Reply[Any]) -> Turn:
        """Return the turn of an unusable answer of the planner: no action, and the reason as its result."""
        outcome = ActionOutcome(Observation(), reply.failure)
        return turn_of(number, NO_STEP, None, outcome, unusable_text(reply), self._episode.seconds)

    async def _turn(self, number: int, step: NextStep) -> Turn:
        """Call the tool that the planner named; a call that the tool refuses is written once more."""
        name = next((name for name in _spellings(step.tool_name) if name in self._cards), None)
        if name is None:
            failure = no_such_tool(step.tool_name, self._cards)
            return self._turn_of(number, step, None, ActionOutcome(Observation(), failure))
        request = CommandRequest(question=self._episode.task.question, step=step, tool=self._cards[name])
        command, action, outcome = await self._try(number, "", request)
        failure = outcome.failure
        if command is not None and failure is not None and failure.kind == ErrorKind.BAD_ARGUMENTS:
            again = replace(request, mistake=failure.message, before=command)
            repaired = await self._try(number, "/again", again)
            if repaired[0] is not None:
                _, action, outcome = repaired
        return self._turn_of(number, step, action, outcome)

    async def _try(
        self, number: int, again: str, request: CommandRequest
    ) -> tuple[Command | None, Action | None, ActionOutcome]:
        """Ask for the arguments of a call and make it, unless they violate the schema."""
        ask = partial(self._team.executor.command, request)
        reply = await self._episode.ask(f"{number}/command{again}", "executor", Command, ask)
        if reply.value is None:
            failure = reply.failure or Failure(ErrorKind.FAILED, "the executor wrote no call")
            return None, None, ActionOutcome(Observation(), failure)
        action, refusal = self._episode.bind(request.tool.name, reply.value.arguments)
        if action is None or refusal is not None:
            return reply.value, action, ActionOutcome(Observation(), refusal)
        key = f"{number}/act{again}"
        timed = await self._episode.act(key, number, action)
        self._episode.count_tool(key, timed)
        return reply.value, action, timed.value

    def _turn_of(self, number: int, step: NextStep, action: Action | None, outcome: ActionOutcome) -> Turn:
        text = result_text(
            outcome.observation.text,
            self._settings.max_observation_chars,
            self._episode.task.question,
            action,
            step.sub_goal,
            step.justification,
            failure=outcome.failure,
        )
        return turn_of(number, step, action, outcome, text, self._episode.seconds)


def _check_answered(reply: Reply[Any]) -> None:
    """:raises EpisodeEnded: if the planner gave no answer, not even an unusable one."""
    if reply.value is None and not reply.is_unusable:
        raise EpisodeEnded(Ending.FAILED)


def _text(reply: Reply[Any]) -> ModelText:
    return ModelText(repeated(reply.text) if reply.is_unusable else reply.text, reply.mark)


def _spellings(name: str) -> tuple[str, str]:
    """Return a tool's name as written, and with an underscore as the separator."""
    return name, name.replace(":", "_")


class EpisodeMemory:
    """Memory of one episode: all turns are kept, and prompts replace the oldest ones by a summary when it is too long."""

    def __init__(
        self, episode: OpenEpisode, summarise: Callable[[SummaryRequest], Awaitable[Reply[Summary]]]
    ) -> None:
        self._episode = episode
        self._summarise = summarise
        self._max_chars = episode.settings.memory_chars
        self._summary = ""
        self._summarised = 0

    @property
    def shown(self) -> Memory:
        """The memory as shown to the roles."""
        kept = tuple(self._episode.turns[self._summarised :])
        return Memory(summary=self._summary, summarised=self._summarised, turns=kept)

    def set_decision(self, decision: Decision, text: ModelText = _OWN_ENCODING) -> None:
        """Set the decision on the last turn.

        :param text: the decision as the verifier wrote it.
        """
        self._episode.turns[-1] = replace(self._episode.turns[-1], decision=decision, verifier_text=text)

    async def shorten(self) -> None:
        """If the memory is too long, summarise as many of the oldest turns as it takes to halve it.

        :raises EpisodeEnded: if the episode's turns end first.
        """
        sizes = [turn_size(turn) for turn in self._episode.turns[self._summarised :]]
        if len(self._summary) + sum(sizes) <= self._max_chars:
            return
        room, kept = self._max_chars // 2 - sizes[-1], 1
        while kept < len(sizes) and (room := room - sizes[-kept - 1]) >= 0:
            kept += 1
        oldest = tuple(self._episode.turns[self._summarised : len(self._episode.turns) - kept])
        if not oldest:
            return
        request = SummaryRequest(question=self._episode.task.question, summary=self._summary, turns=oldest)
        key = f"summary/{len(self._episode.turns)}"
        reply = await self._episode.ask(key, "generator", Summary, partial(self._summarise, request))
        summary = listed_turns(self._summary, oldest) if reply.value is None else reply.value.summary
        self._summary = cut(summary, self._max_chars // 4)
        self._summarised = len(self._episode.turns) - kept
