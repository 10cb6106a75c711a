"""What an episode has done and used up: every effect once, on its page, within its limits."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from agentflow.actors import Clock
from agentflow.errors import ConfigurationError, ModelFailureKind
from agentflow.journal import Page
from agentflow.models import Prices
from agentflow.team._settings import EpisodeSettings
from agentflow.trajectory import Ending, Exchange, Failure, Outcome, Reply

__all__ = ["Ledger", "Over", "Stamped", "Through"]

T = TypeVar("T")

END = "end"
"""Where the page says why an episode's turns were cut short."""


class Through(Protocol):
    """Lets an effect happen, at once or once it may."""

    async def __call__(self, effect: Callable[[], Awaitable[T]], /) -> T:
        """Have it, and give what came of it."""
        ...


class Stamped(Struct, Generic[T], frozen=True):
    """What came of an effect, as it stands on the page."""

    value: T
    """What came of it."""
    seconds: float
    """When that was, in seconds from the episode's beginning."""


class Over(Exception):
    """The episode's turns end here: a limit is hit, or a role could not do its part."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Ledger:
    """The page of one episode, with its clock and its purse. The time before a crash counts, that between two lives does not."""

    def __init__(
        self,
        page: Page,
        settings: EpisodeSettings,
        *,
        prices: Mapping[str, Prices] | None,
        through: Through | None,
        clock: Clock,
    ) -> None:
        """Open it.

        :raises ConfigurationError: if there is a limit of money, and nothing says what anything costs.
        """
        if settings.max_cost is not None and not prices:
            raise ConfigurationError(
                "max_cost: a limit of money needs the models' prices; set `prices` of each"
            )
        self.page = page
        """Where everything is written."""
        self.exchanges: list[Exchange] = []
        """The calls of models so far."""
        self.seconds = 0.0
        """When the last effect was over."""
        self._settings = settings
        self._prices = prices or {}
        self._through = through or _at_once
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
        """What a model answers there.

        :raises Over: if the episode's turns end before that.
        """
        stamped = await self.once(key, Reply[kind], ask)
        reply = stamped.value
        self._note(key, role, reply, stamped.seconds)
        return reply

    def used(self, key: str, stamped: Stamped[Outcome]) -> None:
        """Models inside of a tool are paid, too."""
        usage = stamped.value.usage
        if usage.calls:
            self._note(key, "tool", Reply[None](usage=usage), stamped.seconds)

    async def once(self, key: str, kind: type[T], make: Callable[[], Awaitable[T]]) -> Stamped[T]:
        """What stands there; if nothing does, what is made now and noted there.

        :raises Over: if the episode's turns end before that.
        """
        known = self.page.recall(key, Stamped[kind])
        if known is None:
            self._check()
            made = await self._within(make)
            known = Stamped(made, self._elapsed())
            await self.page.note(key, known)
        self._settle(known.seconds)
        return known

    async def close(self, ending: Ending) -> None:
        """Its turns end early. From now on it only answers."""
        if self._ended is None:
            self._ended = ending
            await self.page.record(END, ending)

    async def answer(
        self, key: str, role: str, kind: type[T], ask: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        """What a model answers in the end, with all the time that is left and whatever it costs."""
        self._answering = True
        try:
            return await self.ask(key, role, kind, ask)
        except Over:
            limit = f"the episode's {self._settings.max_seconds:g} seconds were over before it was answered"
            late: Reply[T] = Reply(failure=Failure(ModelFailureKind.TIMEOUT, limit))
            await self.page.record(key, Stamped(late, self._elapsed()))
            return await self.ask(key, role, kind, ask)

    def _elapsed(self) -> float:
        return self.seconds + self._clock.now() - self._since

    def _settle(self, seconds: float) -> None:
        """So far it has come; what is only read again takes no time."""
        self.seconds = max(self.seconds, seconds)
        self._since = self._waiting_since = self._clock.now()

    def _left(self) -> float:
        """Seconds for what comes now; some of them are kept for the answer."""
        settings = self._settings
        kept = 0.0 if self._answering else min(settings.answer_seconds, settings.max_seconds / 2)
        return settings.max_seconds - kept - self._elapsed()

    def _check(self) -> None:
        if self._answering:
            return
        if self._ended is not None:
            raise Over(self._ended)
        settings = self._settings
        if settings.max_tokens is not None and self._tokens >= settings.max_tokens:
            raise Over(Ending.TOKENS)
        if settings.max_cost is not None and self._cost >= settings.max_cost:
            raise Over(Ending.MONEY)

    async def _within(self, make: Callable[[], Awaitable[T]]) -> T:
        if not self._waiting:
            self._waiting_since = self._clock.now()
        self._waiting += 1

        async def begin() -> T:
            # Whoever paused the run did not pause the clock: time in which all wait for leave does not count.
            self._waiting -= 1
            if not self._waiting:
                self._since += self._clock.now() - self._waiting_since
            left = self._left()
            if left > 0:
                with self._clock.deadline(left):
                    return await make()
            raise Over(Ending.TIME)

        return await self._through(begin)

    def _note(self, key: str, role: str, reply: Reply[Any], seconds: float) -> None:
        usage = reply.usage
        self.exchanges.append(
            Exchange(
                key=key,
                role=role,
                usage=usage,
                failure=reply.failure,
                tokens=reply.tokens,
                unusable=reply.unusable,
                seconds=seconds,
            )
        )
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        if role in self._prices:
            self._cost += self._prices[role].cost(usage)


async def _at_once(effect: Callable[[], Awaitable[T]], /) -> T:
    return await effect()
