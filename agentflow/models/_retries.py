"""The one place where requests are retried."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ModelFailureKind
from agentflow.models._limiter import ConcurrencyLimiter, Permit
from agentflow.models._request_error import RequestError

T = TypeVar("T")

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 8.0


class Retrier:
    """Repeat a request until it succeeds, can't succeed, or runs out of time or attempts."""

    def __init__(
        self,
        limiter: ConcurrencyLimiter,
        *,
        most: int,
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        """Set the bounds.

        :param most: maximum number of requests per call.
        :param seconds: time for one call, from its first request on.
        :param random: source of the jitter of pauses.
        """
        self._limiter = limiter
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._random = random or Random()
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
            permit = await self._limiter.acquire(ticket)
            now = self._clock.now()
            deadline = now + self._seconds if deadline is None else deadline
            attempt += 1
            try:
                return await self._one(once, permit, deadline - now)
            except RequestError as error:
                error.attempts = attempt
                pause = self._pause(error, attempt)
                if not error.retry or attempt >= self._most or self._clock.now() + pause >= deadline:
                    raise
            if pause:
                await self._clock.sleep(pause)

    async def _one(self, once: Callable[[float], Awaitable[T]], permit: Permit, seconds: float) -> T:
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
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
        return longest * self._random.uniform(0.5, 1.0)
