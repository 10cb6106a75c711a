"""Retries of requests, the adaptive limit of concurrent ones and rate limits; no other place retries."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from hashlib import sha256
from itertools import count
from random import Random
from typing import Final, NamedTuple, Protocol, TypeVar

from agentflow.actors import SYSTEM_CLOCK, Clock, Timer
from agentflow.errors import ModelFailureKind
from agentflow.models._providers import ModelAddress
from agentflow.models._request_error import RequestError

T = TypeVar("T")
_FIRST_PAUSE = 0.25
_MAX_PAUSE = 8.0
_USED_SHARE: Final = 0.97
"""Share of a limit that is used: slots are even, and the network delivers some requests later than others."""


class Permit(NamedTuple):
    """Permit for one request."""

    round: int
    """Number of decreases before the request started."""


class ConcurrencyLimiter:
    """Adaptive concurrency limit: additive increase, multiplicative decrease (AIMD), first come, first served.

    The limit grows by one for each success until the endpoint first reports overload, then by one for each full round.
    An overload halves it; those of requests that were already in flight at that time are ignored. The limit grows only
    while it is the bottleneck.
    """

    def __init__(self, max_limit: int, *, start: int = 64, clock: Clock = SYSTEM_CLOCK) -> None:
        """:param max_limit: upper bound of the limit.
        :param start: initial limit, high enough for a few trees with eight calls each to start without waiting for it to
            grow.
        """
        self._max_limit = max_limit
        self._limit = float(min(start, max_limit))
        self._clock = clock
        self._tickets = count()
        self._waiting: list[tuple[int, asyncio.Future[Permit]]] = []
        self.in_flight = 0
        """Requests with a permit."""
        self._round = 0
        self._pushed_back = False
        self._closed_until = 0.0
        self._opening: Timer | None = None

    @property
    def limit(self) -> int:
        """Current limit."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(not permit.done() for _, permit in self._waiting)

    def ticket(self) -> int:
        """Return a position in the queue; a call keeps it for all its attempts, so that it goes before later calls."""
        return next(self._tickets)

    async def acquire(self, ticket: int) -> Permit:
        """Wait for a permit."""
        if not self._waiting and self._is_open():
            self.in_flight += 1
            return Permit(self._round)
        waiter: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The permit arrived together with the cancellation: pass it on.
                self.in_flight -= 1
                self._let_in()
            raise

    def release(
        self, permit: Permit, *, good: bool = False, overloaded: bool = False, pause: float = 0.0
    ) -> None:
        """Return a permit.

        :param good: the request was answered.
        :param overloaded: the endpoint reported overload, or took too long.
        :param pause: seconds without new permits.
        """
        if good and permit.round == self._round and self.in_flight >= self.limit:
            self._limit = min(self._max_limit, self._limit + (1 / self._limit if self._pushed_back else 1))
        elif overloaded and permit.round == self._round:
            self._limit = max(1.0, self._limit / 2)
            self._round += 1
            self._pushed_back = True
        self.in_flight -= 1
        if pause > 0:
            self._close(pause)
        self._let_in()

    def _is_open(self) -> bool:
        return self.in_flight < self.limit and self._opening is None

    def _close(self, seconds: float) -> None:
        until = self._clock.now() + seconds
        if self._opening is not None:
            if until <= self._closed_until:
                return
            self._opening.cancel()
        self._closed_until = until
        self._opening = self._clock.call_later(seconds, self._open)

    def _open(self) -> None:
        self._opening = None
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._is_open()):
            _, waiter = heapq.heappop(self._waiting)
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(Permit(self._round))


class RateLimiter(Protocol):
    """Assigns slots to the requests of all who share a limit. See docs/models.md."""

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot and return the seconds until it.

        :param name: name of the limit.
        :param interval: seconds between two slots.
        """
        ...


class LocalRateLimiter:
    """Slots for the requests of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free: dict[str, float] = {}

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot and return the seconds until it."""
        now = self._clock.now()
        slot = max(now, self._free.get(name, now))
        self._free[name] = slot + interval
        return slot - now


class ModelThrottle:
    """Lets one request pass per slot of the limit of a model."""

    def __init__(
        self, limiter: RateLimiter, address: ModelAddress, per_minute: float | None, clock: Clock
    ) -> None:
        """:param per_minute: the limit; `None`: there is none."""
        self._limiter = limiter
        # Providers limit the requests of a key to a model. The key itself is not stored.
        self._name = sha256(f"{address.url}\n{address.model}\n{address.key}".encode()).hexdigest()
        self._interval = None if per_minute is None else 60 / (per_minute * _USED_SHARE)
        self._clock = clock

    async def wait(self) -> None:
        """Wait for the slot of one request."""
        if self._interval is None:
            return
        seconds = await self._limiter.reserve(self._name, self._interval)
        if seconds > 0:
            await self._clock.sleep(seconds)


class Retrier:
    """Repeat a request until it succeeds, can't succeed, or runs out of time or attempts."""

    def __init__(
        self,
        limiter: ConcurrencyLimiter,
        *,
        max_requests: int,
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
        throttle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """:param max_requests: maximum number of requests per call.
        :param seconds: time for one call, from its first request on.
        :param random: source of the jitter of pauses.
        :param throttle: waits for the slot of a request, under a rate limit.
        """
        self._limiter = limiter
        self._max_requests = max_requests
        self._seconds = seconds
        self._clock = clock
        self._random = random or Random()
        self._throttle = throttle
        self.made = 0
        """Requests made so far, over all calls."""

    async def run(self, once: Callable[[float], Awaitable[T]]) -> T:
        """Return the result of `once`, which gets the number of seconds left.

        :raises RequestError: that of the last attempt.
        """
        ticket = self._limiter.ticket()
        deadline: float | None = None
        attempt = 0
        while True:
            permit = await self._permit(ticket)
            now = self._clock.now()
            deadline = now + self._seconds if deadline is None else deadline
            attempt += 1
            try:
                return await self._attempt(once, permit, deadline - now)
            except RequestError as error:
                error.attempts = attempt
                pause = self._pause(error, attempt)
                if not error.retry or attempt >= self._max_requests or self._clock.now() + pause >= deadline:
                    raise
            if pause:
                await self._clock.sleep(pause)

    async def _permit(self, ticket: int) -> Permit:
        """Wait for a permit and a slot; the time for a call does not begin before its first slot."""
        permit = await self._limiter.acquire(ticket)
        if self._throttle is not None:
            try:
                await self._throttle()
            except BaseException:
                self._limiter.release(permit)
                raise
        return permit

    async def _attempt(self, once: Callable[[float], Awaitable[T]], permit: Permit, seconds: float) -> T:
        good = overloaded = False
        pause = 0.0
        try:
            if seconds <= 0:
                raise RequestError(ModelFailureKind.TIMEOUT, "no time left for another attempt")
            self.made += 1
            answer = await once(seconds)
            good = True
            return answer
        except RequestError as error:
            overloaded = error.overloaded
            good = error.status == 200
            if overloaded:
                pause = min(error.retry_after or 0.0, self._seconds)
            raise
        finally:
            self._limiter.release(permit, good=good, overloaded=overloaded, pause=pause)

    def _pause(self, error: RequestError, attempt: int) -> float:
        """Return the seconds until the next attempt: as the endpoint asked, else exponential backoff with jitter."""
        if not error.backs_off:
            return 0.0
        if error.retry_after is not None:
            return error.retry_after
        pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
        return pause * self._random.uniform(0.5, 1.0)
