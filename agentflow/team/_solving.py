"""An episode of the team: analysis, then turn by turn a step, its call, what came back, and whether that is enough."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.journal import Page
from agentflow.models import Prices
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._cards import card_of, fixed_arguments
from agentflow.team._ledger import Ledger, Over, Through
from agentflow.team._memory import Notebook
from agentflow.team._rendering import cut
from agentflow.team._settings import EpisodeSettings
from agentflow.team._team import Team
from agentflow.team._tool_replay import Hands
from agentflow.trajectory import (
    Action,
    AnalysisRequest,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    Ending,
    Episode,
    Failure,
    NextStep,
    NextStepRequest,
    Observation,
    Outcome,
    QueryAnalysis,
    Reply,
    Solution,
    SolutionRequest,
    Task,
    Turn,
    VerificationRequest,
    Words,
)

__all__ = ["solve_task", "turn_of"]

_NOTHING = QueryAnalysis("", "", "", "")


async def solve_task(
    task: Task,
    *,
    team: Team,
    sandbox: Sandbox,
    tools: Sequence[Tool],
    page: Page,
    settings: EpisodeSettings,
    prices: Mapping[str, Prices] | None = None,
    through: Through | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Episode:
    """Have the team work on a task. What stands on the page is neither asked nor done again.

    :param sandbox: the episode's own, fresh; whoever gives it closes it.
    :param tools: what may be used.
    :param prices: of each role's model, for `max_cost`.
    :param through: what every call of a model or tool goes through; without one they happen at once.
    :raises RunStopped: if the run can't go on; the page holds what was done.
    """
    ledger = Ledger(page, settings, prices=prices, through=through, clock=clock)
    return await _Solving(task, team, sandbox, tools, ledger, settings).solve()


class _Solving:
    """One episode while it goes on."""

    def __init__(
        self,
        task: Task,
        team: Team,
        sandbox: Sandbox,
        tools: Sequence[Tool],
        ledger: Ledger,
        settings: EpisodeSettings,
    ) -> None:
        self._task = task
        self._team = team
        self._tools = {tool.name: tool for tool in tools}
        self._cards = {tool.name: card_of(tool, task.kwargs) for tool in tools}
        self._ledger = ledger
        self._settings = settings
        self._hands = Hands(sandbox, self._tools, team.executor.act, ledger.page)
        longest = settings.memory_chars
        self._memory = Notebook(task.question, ledger, team.generator.summarise, longest=longest)
        self._analysis: QueryAnalysis | None = None

    async def solve(self) -> Episode:
        try:
            ending = await self._work()
        except Over as over:
            ending = over.ending
            await self._ledger.close(ending)
        request = SolutionRequest(
            question=self._task.question,
            images=self._task.images,
            analysis=self._analysis,
            memory=self._memory.shown,
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
            diverged=self._hands.diverged,
        )

    async def _work(self) -> Ending:
        """Until it is verified, or all turns are used."""
        await self._analyse()
        for number in range(1, self._settings.max_turns + 1 if self._tools else 1):
            step, said = await self._step(number)
            if step is None:
                return Ending.VERIFIED
            self._memory.turns.append(replace(await self._turn(number, step), said=said))
            if self._settings.verify == "separate" and await self._is_enough(number):
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

    async def _step(self, number: int) -> tuple[NextStep | None, Words]:
        """What comes next, and how the planner wrote it; `None`: nothing, what is known is enough.

        :raises Over: if the planner can't say.
        """
        request = NextStepRequest(
            question=self._task.question,
            images=self._task.images,
            instructions=self._settings.instructions,
            tools=tuple(self._cards.values()),
            analysis=self._analysis or _NOTHING,
            memory=self._memory.shown,
            turns_left=self._settings.max_turns - number + 1,
        )
        planner = self._team.planner
        if self._settings.verify == "separate" or not self._memory.turns:
            ask = partial(planner.next_step, request)
            reply = await self._ledger.ask(f"{number}/next", "planner", NextStep, ask)
            if reply.value is None:
                raise Over(Ending.FAILED)
            return reply.value, _words(reply)
        decide = partial(planner.decide, DecisionRequest(next=request))
        told = await self._ledger.ask(f"{number}/decide", "planner", DecidedStep, decide)
        if (decided := told.value) is None:
            raise Over(Ending.FAILED)
        self._memory.decide(decided.decision)
        return None if decided.decision.stop else decided.next, _words(told)

    async def _is_enough(self, number: int) -> bool:
        """Whether the verifier says stop. If it can't say, the episode goes on."""
        request = VerificationRequest(
            question=self._task.question,
            images=self._task.images,
            tools=tuple(self._cards.values()),
            analysis=self._analysis or _NOTHING,
            memory=self._memory.shown,
        )
        ask = partial(self._team.verifier.decide, request)
        reply = await self._ledger.ask(f"{number}/verify", "verifier", Decision, ask)
        if reply.value is None:
            return False
        self._memory.decide(reply.value, _words(reply))
        return reply.value.stop

    async def _turn(self, number: int, step: NextStep) -> Turn:
        """Call the tool that the planner named."""
        tool = self._tools.get(step.tool_name) or self._tools.get(step.tool_name.replace(":", "_"))
        if tool is None:
            known = ", ".join(self._tools)
            failure = Failure(
                ErrorKind.TOOL_NOT_FOUND, f"there is no tool {step.tool_name!r}; there are: {known}"
            )
            return self._nothing_done(number, step, failure)
        request = CommandRequest(question=self._task.question, step=step, tool=self._cards[tool.name])
        given = await self._try(number, "", request, tool)
        if isinstance(given, tuple) and _misled(given[2]):
            command, _, outcome = given
            assert outcome.failure is not None, "only a failed call was misled"
            again = CommandRequest(
                question=request.question,
                step=step,
                tool=request.tool,
                mistake=outcome.failure.message,
                before=command,
            )
            repaired = await self._try(number, "/again", again, tool)
            given = repaired if isinstance(repaired, tuple) else given
        if isinstance(given, Failure):
            return self._nothing_done(number, step, given)
        _, action, outcome = given
        return turn_of(number, step, action, outcome, self._ledger.seconds)

    async def _try(
        self, number: int, again: str, request: CommandRequest, tool: Tool
    ) -> tuple[Command, Action, Outcome] | Failure:
        """Have a call written and make it, unless its arguments can't be right."""
        ask = partial(self._team.executor.command, request)
        reply = await self._ledger.ask(f"{number}/command{again}", "executor", Command, ask)
        if reply.value is None:
            return reply.failure or Failure(ErrorKind.FAILED, "the executor gave no call")
        arguments = {**reply.value.arguments, **fixed_arguments(tool, self._task.kwargs)}
        action = Action(tool.name, arguments)
        try:
            tool.bind(arguments)
        except ToolFailure as failure:
            refused = Outcome(Observation(), Failure(failure.kind, failure.message))
            return reply.value, action, refused
        return reply.value, action, await self._act(number, f"{number}/act{again}", action)

    async def _act(self, number: int, key: str, action: Action) -> Outcome:
        now = key not in self._ledger.page
        stamped = await self._ledger.once(key, Outcome, partial(self._hands.act, action))
        self._ledger.used(key, stamped)
        self._hands.remember(number, action, stamped.value, now=now)
        return stamped.value

    def _nothing_done(self, number: int, step: NextStep, failure: Failure) -> Turn:
        outcome = Outcome(Observation(), failure)
        return turn_of(number, step, None, outcome, self._ledger.seconds)


def _words(reply: Reply[Any]) -> Words:
    return Words(reply.said, reply.mark)


def turn_of(number: int, step: NextStep, action: Action | None, outcome: Outcome, seconds: float) -> Turn:
    """What happened, as roles see it."""
    failure = outcome.failure
    failed = "" if failure is None else f"The call failed: {failure.kind}: {failure.message}"
    text = "\n".join(part for part in (cut(outcome.observation.text), failed) if part)
    return Turn(
        number=number,
        step=step,
        action=action,
        result=text or "(nothing)",
        images=outcome.observation.blobs,
        failure=failure,
        trouble=outcome.trouble,
        seconds=seconds,
    )


def _misled(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.kind == ErrorKind.BAD_ARGUMENTS
