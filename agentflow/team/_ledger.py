"""Ledger of an episode: its limits, and every effect recorded once on its journal page.

Actions are replayed in a fresh sandbox when the old one is lost.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import anyio
from msgspec import Struct
from pydantic import Field

from agentflow.actors import Clock
from agentflow.errors import ConfigurationError, ErrorKind, ModelFailureKind
from agentflow.journal import Page
from agentflow.models import Prices
from agentflow.sandbox import Sandbox, Tool
from agentflow.settings import Section
from agentflow.team._pool import EffectGate, run_now
from agentflow.telemetry import silent_spans
from agentflow.trace import Action, ActionOutcome, Ending, Exchange, Failure, Reply

T = TypeVar("T")
END = "end"
"""Journal key of the reason for which an episode's turns ended early."""


class EpisodeSettings(Section):
    """Limits and mode of an episode, for a team or a single agent. An episode that hits a limit still answers.

    See docs/team.md.
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
    """Maximum characters of memory in a prompt; beyond it the oldest turns are summarised."""
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


class EpisodeLedger:
    """Journal page, clock and budget of one episode.

    Time before a crash counts towards the limit; time between a crash and its resumption does not.
    """

    def __init__(
        self,
        page: Page,
        settings: EpisodeSettings,
        *,
        prices: Mapping[str, Prices] | None,
        gate: EffectGate | None,
        clock: Clock,
    ) -> None:
        """Open the ledger.

        :raises ConfigurationError: if there is a cost limit but no prices.
        """
        if settings.max_cost is not None and not prices:
            raise ConfigurationError("max_cost: a cost limit needs the models' prices; set `prices` of each")
        self.page = page
        """Record of all effects."""
        self.exchanges: list[Exchange] = []
        """Model calls so far."""
        self.seconds = 0.0
        """Time of the last result."""
        self._settings = settings
        self._prices = prices or {}
        self._gate = gate or run_now
        self._clock = clock
        self._ended = page.recall(END, Ending)
        self._since = clock.now()
        self._waiting = 0
        self._waiting_since = self._since
        self._tokens = 0
        self._cost = 0.0
        self._answering = False

    async def ask(
        self, key: str, role: str, kind: type[T], ask: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        """Return the recorded reply for a key, or ask for it.

        :raises EpisodeEnded: if the episode's turns end first.
        """
        timed = await self.once(key, Reply[kind], ask)
        reply = timed.value
        self._count(key, role, reply, timed.seconds)
        return reply

    def count_tool(self, key: str, timed: TimedResult[ActionOutcome]) -> None:
        """Count the usage of models inside a tool."""
        usage = timed.value.usage
        if usage.calls:
            self._count(key, "tool", Reply[None](usage=usage), timed.seconds)

    async def once(self, key: str, kind: type[T], effect: Callable[[], Awaitable[T]]) -> TimedResult[T]:
        """Return the recorded result for a key, or run the effect and record its result.

        :raises EpisodeEnded: if the episode's turns end first.
        """
        known = self.page.recall(key, TimedResult[kind])
        if known is None:
            self._check_limits()
            made = await self._within_limit(effect)
            known = TimedResult(made, self._elapsed())
            await self.page.note(key, known)
        self._advance(known.seconds)
        return known

    async def close(self, ending: Ending) -> None:
        """End the turns early. From now on the episode only answers."""
        if self._ended is None:
            self._ended = ending
            await self.page.record(END, ending)

    async def answer(
        self, key: str, role: str, kind: type[T], ask: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        """Ask for the final answer, with all remaining time and regardless of tokens and cost."""
        self._answering = True
        try:
            return await self.ask(key, role, kind, ask)
        except EpisodeEnded:
            limit = f"the episode's limit of {self._settings.max_seconds:g} seconds passed before the answer"
            late: Reply[T] = Reply(failure=Failure(ModelFailureKind.TIMEOUT, limit))
            await self.page.record(key, TimedResult(late, self._elapsed()))
            return await self.ask(key, role, kind, ask)

    def _elapsed(self) -> float:
        return self.seconds + self._clock.now() - self._since

    def _advance(self, seconds: float) -> None:
        """Set the episode's time to that of a result; reading a recorded one takes no time."""
        self.seconds = max(self.seconds, seconds)
        self._since = self._waiting_since = self._clock.now()

    def _remaining(self) -> float:
        """Return the seconds left for the next effect; some are reserved for the answer."""
        settings = self._settings
        reserved = 0.0 if self._answering else min(settings.answer_seconds, settings.max_seconds / 2)
        return settings.max_seconds - reserved - self._elapsed()

    def _check_limits(self) -> None:
        if self._answering:
            return
        if self._ended is not None:
            raise EpisodeEnded(self._ended)
        settings = self._settings
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

        return await self._gate(begin)

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
        if role in self._prices:
            self._cost += self._prices[role].cost(usage)


Act = Callable[[Sandbox, Action], Awaitable[ActionOutcome]]
"""Calls a tool; a failed call is an outcome."""


Prepare = Callable[[Sandbox], Awaitable[None]]
"""Brings a fresh session into the initial state of a task."""


class _TurnAction(NamedTuple):
    turn: int
    action: Action
    outcome: ActionOutcome


class ToolReplay:
    """Runs the actions of one episode.

    Actions recorded on the page may have changed a sandbox that no longer exists. The first action that needs its
    state replays them. If a replayed action returns something else, the recorded outcome counts and the turn is
    reported as diverged.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tools: Mapping[str, Tool],
        act: Act,
        page: Page,
        prepare: Prepare | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._prepare = prepare
        self._tools = tools
        self._act = act
        self._page = page
        self._history: list[_TurnAction] = []
        self._replayed = 0
        self._lock = anyio.Lock()

    @property
    def diverged(self) -> tuple[int, ...]:
        """Turns whose action returned something else when it was replayed."""
        turns = dict.fromkeys(past.turn for past in self._history)
        return tuple(turn for turn in turns if f"diverged/{turn}" in self._page)

    async def act(self, action: Action) -> ActionOutcome:
        """Run an action in the current state."""
        tool = self._tools[action.tool]
        if tool.hints.changes_world:
            # A crash must not lose the decision that led to an external effect.
            await self._page.settle()
        if not tool.stateful:
            return await self._act(self._sandbox, action)
        await self._catch_up()
        outcome = await self._act(self._sandbox, action)
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.SESSION_NOT_FOUND:
            # The session ended before the action ran; the next call starts another one.
            await self._sandbox.destroy_session()
            if self._prepare is not None:
                await self._prepare(self._sandbox)
            self._replayed = 0
            await self._catch_up()
            outcome = await self._act(self._sandbox, action)
        return outcome

    def add(self, turn: int, action: Action, outcome: ActionOutcome, *, current: bool) -> None:
        """Add an action to the history.

        :param current: it ran in the current sandbox, not in an earlier one.
        """
        if self._tools[action.tool].stateful:
            self._history.append(_TurnAction(turn, action, outcome))
            self._replayed += current

    async def _catch_up(self) -> None:
        async with self._lock:
            while self._replayed < len(self._history):
                past = self._history[self._replayed]
                with silent_spans():
                    outcome = await self._act(self._sandbox, past.action)
                self._replayed += 1
                same = (outcome.observation, outcome.lost) == (past.outcome.observation, past.outcome.lost)
                if not same and f"diverged/{past.turn}" not in self._page:
                    await self._page.record(f"diverged/{past.turn}", True)
