"""Episodes: an agent works on a task; every call of a model or tool is recorded once, within the limits.

An episode is a function of its effects. After a crash the agent works again from the beginning: recorded effects are
returned as they were, and actions that changed a lost sandbox are replayed before the next one needs its state.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.engine._sandboxes import EpisodeActions, EpisodeSandbox, Prepare
from agentflow.engine._tool_cards import bind_action, no_such_tool
from agentflow.errors import ConfigurationError, ModelFailureKind
from agentflow.journal import Page
from agentflow.models import Prices
from agentflow.sandbox import Sandbox, Tool
from agentflow.settings import Section
from agentflow.trace import (
    Action,
    ActionOutcome,
    BlobStore,
    Ending,
    Episode,
    Exchange,
    Failure,
    MemoryBlobStore,
    NextStep,
    Observation,
    QueryAnalysis,
    Reply,
    Solution,
    Task,
    Turn,
    needed_documents,
    shown_sources,
)

T = TypeVar("T")


class EffectGate(Protocol):
    """Runs an effect as soon as it is allowed, for example once a paused run is resumed."""

    async def __call__(self, effect: Callable[[], Awaitable[T]], /) -> T:
        """Run the effect and return its result."""
        ...


async def run_now(effect: Callable[[], Awaitable[T]], /) -> T:
    """Run an effect immediately. Implements `EffectGate`. See docs/engine.md."""
    return await effect()


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """Resources that the trees and episodes of a run share. See docs/engine.md."""

    blobs: BlobStore = field(default_factory=MemoryBlobStore)
    """Store of images."""
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    """Prices of each role's model, for cost limits."""
    gate: EffectGate = run_now
    """Gate for every call of a model or tool."""
    clock: Clock = SYSTEM_CLOCK
    """Clock of time limits."""


END = "end"
"""Journal key of the reason for which an episode's turns ended early."""


class EpisodeSettings(Section):
    """Limits and mode of an episode, for a team or a single agent. An episode that hits a limit still answers.

    See docs/engine.md and docs/team.md.
    """

    max_turns: int = Field(default=10, ge=0)
    """Maximum number of turns; 0 answers from the model's own knowledge. Training usually uses three."""
    max_seconds: float = Field(default=300.0, gt=0)
    """Time limit in seconds, including the answer; calls in progress are cancelled when it is reached."""
    answer_seconds: float = Field(default=30.0, ge=0)
    """Part of `max_seconds` reserved for the answer; at most half."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Prompt and generated tokens after which the episode only answers."""
    max_cost: float | None = Field(default=None, gt=0)
    """Cost, in the currency of the prices, after which the episode only answers."""
    memory_chars: int = Field(default=24_000, ge=1_000)
    """Maximum characters of a team's memory in a prompt; beyond it the oldest turns are summarised."""
    context_tokens: int = Field(default=32_000, ge=1_000)
    """Maximum tokens of a single agent's prompt; beyond it the oldest part of its conversation is summarised."""
    max_observation_chars: int = Field(default=6_000, ge=200)
    """Maximum characters of one result in a prompt; of a longer one the passages are shown that fit the question."""
    verify: Literal["separate", "merged"] = "separate"
    """Role that decides to stop: the verifier (`separate`), or the planner with the next step (`merged`)."""
    abstain: bool = True
    """Let the generator leave the answer empty instead of a blind guess."""
    instructions: str = ""
    """User instructions for the system prompt of the planner or the single agent."""


class TimedResult(Struct, Generic[T], frozen=True):
    """Result of an effect, as recorded in the journal."""

    value: T
    """The result."""
    seconds: float
    """Time of the result, in seconds since the start of the episode."""


class EpisodeEnded(Exception):
    """The episode's turns end: a limit was reached or a role failed."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class AgentWork(Protocol):
    """An agent's side of one episode."""

    async def work(self) -> Ending:
        """Run turns until they end.

        :raises EpisodeEnded: if they end early.
        """
        ...

    async def answer(self) -> Reply[Solution]:
        """Answer, whatever ended the turns."""
        ...


class EpisodeAgent(Protocol):
    """An agent that works on tasks: `agentflow.team.TeamAgent`, `ToolAgent`, or any class with these members.

    See docs/engine.md.
    """

    @property
    def name(self) -> str:
        """Kind of the agent, as it is recorded: `team`, `single` or another word."""
        ...

    def begin(self, episode: "OpenEpisode") -> AgentWork:
        """Begin an episode. All calls of models and tools go through it."""
        ...

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool; a failed call is an outcome."""
        ...


class DecisionPoints(Protocol):
    """Points at which an episode may branch; its model calls pass through them."""

    async def arrive(self, episode: "OpenEpisode", role: str) -> None:
        """Wait before a call of a role, until it is chosen how the episode continues."""
        ...

    async def leave(self, episode: "OpenEpisode", role: str, reply: Reply[Any]) -> None:
        """Look at the reply that such a call gave."""
        ...


@dataclass(frozen=True, kw_only=True)
class EpisodeEngine:
    """Runs episodes of an agent. See docs/engine.md."""

    agent: EpisodeAgent
    """The agent."""
    tools: Sequence[Tool]
    """Available tools."""
    settings: EpisodeSettings
    """Limits of an episode."""
    context: EngineContext = field(default_factory=EngineContext)
    """Prices, gate and clock."""

    async def solve(
        self, task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None = None
    ) -> Episode:
        """Have the agent work on a task. Effects recorded on the page are not repeated.

        :param sandbox: a fresh sandbox for this episode alone; the caller closes it.
        :param prepare: brings another session into the initial state of the task, if the sandbox loses its own.
        :raises RunStopped: if the run cannot continue; completed effects are on the page.
        """
        tools = {tool.name: tool for tool in self.tools}
        actions = EpisodeActions(page, tools, self.agent, EpisodeSandbox(sandbox, prepare), sandbox)
        return await OpenEpisode(task, tools, self.settings, page, actions, self.context).play(self.agent)


_NO_REPLY: Final[Reply[Solution]] = Reply()


class OpenEpisode:
    """An episode in progress: its task, and every effect of its agent.

    Time before a crash counts towards the limit; time between a crash and its resumption does not.
    """

    def __init__(
        self,
        task: Task,
        tools: Mapping[str, Tool],
        settings: EpisodeSettings,
        page: Page,
        actions: EpisodeActions,
        context: EngineContext,
        points: DecisionPoints | None = None,
    ) -> None:
        """:param points: points at which it may branch.
        :raises ConfigurationError: if there is a cost limit but no prices.
        """
        if settings.max_cost is not None and not context.prices:
            raise ConfigurationError("max_cost: a cost limit needs the models' prices; set `prices` of each")
        self.task = task
        """The task."""
        self.tools = tools
        """Available tools by name."""
        self.settings = settings
        """Limits of the episode."""
        self.analysis: QueryAnalysis | None = None
        """Analysis of the task, if the agent makes one."""
        self.turns: list[Turn] = []
        """All turns so far."""
        self.exchanges: list[Exchange] = []
        """Model calls so far."""
        self.seconds = 0.0
        """Time of the last result."""
        self._page = page
        self._actions = actions
        self._observations: dict[int, Observation] = {}
        self._context = context
        self._clock = context.clock
        self._points = points
        self._since = self._clock.now()
        self._waiting = 0
        self._waiting_since = self._since
        self._tokens = 0
        self._cost = 0.0
        self._is_answering = False

    async def play(self, agent: EpisodeAgent) -> Episode:
        """Have an agent work on the task until it answers.

        :raises RunStopped: if the run cannot continue; completed effects are on the page.
        """
        work = agent.begin(self)
        try:
            ending = await work.work()
        except EpisodeEnded as ended:
            ending = ended.ending
            await self.close(ending)
        reply = await work.answer()
        failed = reply.value is None and ending is not Ending.TIME
        return self.so_far(agent.name, Ending.FAILED if failed else ending, reply)

    def so_far(self, agent: str, ending: Ending, reply: Reply[Solution] = _NO_REPLY) -> Episode:
        """Return what was done so far as an episode.

        :param agent: kind of the agent.
        :param reply: its answer.
        """
        return Episode(
            task=self.task,
            agent=agent,
            ending=ending,
            analysis=self.analysis,
            turns=self.turns_with_sources(),
            solution=reply.value,
            failure=reply.failure,
            exchanges=tuple(self.exchanges),
            seconds=self.seconds,
            diverged=self._actions.diverged,
        )

    async def ask(
        self,
        key: str,
        role: str,
        kind: type[T],
        ask: Callable[[], Awaitable[Reply[T]]],
        *,
        branches: bool = True,
    ) -> Reply[T]:
        """Return the recorded reply of a model, or ask for it.

        :param key: position in the episode.
        :param role: role under which its usage is counted.
        :param branches: the episode may branch before it.
        :raises EpisodeEnded: if the episode's turns end first.
        """
        if self._points is None or not branches:
            return await self._ask(key, role, kind, ask)
        began = self._clock.now()
        await self._points.arrive(self, role)
        # Time in which other paths catch up is not the episode's.
        self._since += self._clock.now() - began
        reply = await self._ask(key, role, kind, ask)
        began = self._clock.now()
        await self._points.leave(self, role, reply)
        self._since += self._clock.now() - began
        return reply

    async def _ask(
        self, key: str, role: str, kind: type[T], ask: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        timed = await self._once(key, Reply[kind], ask)
        self._count(key, role, timed.value, timed.seconds)
        return timed.value

    async def answer(
        self,
        key: str,
        role: str,
        kind: type[T],
        ask: Callable[[], Awaitable[Reply[T]]],
        *,
        branches: bool = True,
    ) -> Reply[T]:
        """Ask for the final answer, with all remaining time and regardless of tokens and cost."""
        self._is_answering = True
        try:
            return await self.ask(key, role, kind, ask, branches=branches)
        except EpisodeEnded:
            limit = f"the episode's limit of {self.settings.max_seconds:g} seconds passed before the answer"
            late: Reply[T] = Reply(failure=Failure(ModelFailureKind.TIMEOUT, limit))
            await self._page.record(key, TimedResult(late, self._elapsed()))
            return await self._ask(key, role, kind, ask)

    def bind(self, name: str, arguments: Mapping[str, Any]) -> tuple[Action | None, Failure | None]:
        """Return the call of a tool with the fixed arguments of the task, and the reason if it cannot be made."""
        tool = self.tools.get(name)
        if tool is None:
            return None, no_such_tool(name, self.tools)
        return bind_action(tool, arguments, self.task.kwargs)

    async def act(self, key: str, turn: int, action: Action) -> TimedResult[ActionOutcome]:
        """Return the recorded outcome of an action, or run it in the current state of the sandbox.

        :raises EpisodeEnded: if the episode's turns end first.
        """
        is_current = key not in self._page
        timed = await self._once(key, ActionOutcome, lambda: self._actions.run(action))
        self._actions.add(turn, action, timed.value, is_current=is_current)
        if timed.value.observation.sources:
            self._observations[turn] = timed.value.observation
        return timed

    def turns_with_sources(self) -> tuple[Turn, ...]:
        """Return all turns; if the task names the documents that it needs, with the parts of documents that they show."""
        if not needed_documents(self.task):
            return tuple(self.turns)
        observed = [(turn, self._observations.get(turn.number, Observation())) for turn in self.turns]
        return tuple(replace(turn, sources=shown_sources(seen, turn.result)) for turn, seen in observed)

    def count_tool(self, key: str, timed: TimedResult[ActionOutcome]) -> None:
        """Count the usage of models inside a tool."""
        usage = timed.value.usage
        if usage.calls:
            self._count(key, "tool", Reply[None](usage=usage), timed.seconds)

    async def close(self, ending: Ending) -> None:
        """End the turns early. From now on the agent only answers."""
        if END not in self._page:
            await self._page.record(END, ending)

    async def _once(self, key: str, kind: type[T], effect: Callable[[], Awaitable[T]]) -> TimedResult[T]:
        """Return the recorded result for a key, or run the effect and record its result."""
        timed = self._page.recall(key, TimedResult[kind])
        if timed is None:
            self.check_limits()
            result = await self._within_limit(effect)
            timed = TimedResult(result, self._elapsed())
            await self._page.note(key, timed)
        # Reading a recorded result takes no time.
        self.seconds = max(self.seconds, timed.seconds)
        self._since = self._waiting_since = self._clock.now()
        return timed

    def _elapsed(self) -> float:
        return self.seconds + self._clock.now() - self._since

    def _remaining(self) -> float:
        """Return the seconds left for the next effect; some are reserved for the answer."""
        settings = self.settings
        reserved = 0.0 if self._is_answering else min(settings.answer_seconds, settings.max_seconds / 2)
        return settings.max_seconds - reserved - self._elapsed()

    def check_limits(self) -> None:
        """Check that the turns may continue.

        :raises EpisodeEnded: if a limit was reached.
        """
        if self._is_answering:
            return
        if (ending := self._page.recall(END, Ending)) is not None:
            raise EpisodeEnded(ending)
        settings = self.settings
        if settings.max_tokens is not None and self._tokens >= settings.max_tokens:
            raise EpisodeEnded(Ending.TOKENS)
        if settings.max_cost is not None and self._cost >= settings.max_cost:
            raise EpisodeEnded(Ending.MONEY)

    async def _within_limit(self, effect: Callable[[], Awaitable[T]]) -> T:
        if not self._waiting:
            self._waiting_since = self._clock.now()
        self._waiting += 1

        async def begin() -> T:
            # Pausing a run does not stop the clock: subtract the time in which every effect waited at the gate.
            self._waiting -= 1
            if not self._waiting:
                self._since += self._clock.now() - self._waiting_since
            remaining = self._remaining()
            if remaining > 0:
                with self._clock.deadline(remaining):
                    return await effect()
            raise EpisodeEnded(Ending.TIME)

        return await self._context.gate(begin)

    def _count(self, key: str, role: str, reply: Reply[Any], seconds: float) -> None:
        usage = reply.usage
        self.exchanges.append(
            Exchange(
                key=key,
                role=role,
                usage=usage,
                failure=reply.failure,
                tokens=reply.tokens,
                unusable=reply.unusable,
                reasoning=reply.reasoning,
                seconds=seconds,
            )
        )
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        if role in self._context.prices:
            self._cost += self._context.prices[role].cost(usage)


def turn_of(
    number: int, step: NextStep, action: Action | None, outcome: ActionOutcome, text: str, seconds: float
) -> Turn:
    """Return a turn as shown to the roles. See docs/engine.md.

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
