"""The one place where requests are made again."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ModelFailureKind
from agentflow.models._gate import Gate, Slot
from agentflow.models._request_error import Setback

__all__ = ["Attempts"]

T = TypeVar("T")

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 8.0


class Attempts:
    """Makes a request until it brings an answer, is hopeless, or time and tries are up."""

    def __init__(
        self,
        gate: Gate,
        *,
        most: int,
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        """Set the bounds.

        :param most: requests for one call.
        :param seconds: the time for one call, from its first request on.
        :param random: spreads those who come back.
        """
        self._gate = gate
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._random = random or Random()
        self.made = 0
        """Requests made so far, for all calls."""

    async def run(self, once: Callable[[float], Awaitable[T]]) -> T:
        """What `once` gives; it is told how many seconds are left.

        :raises Setback: the last one.
        """
        ticket = self._gate.ticket()
        deadline: float | None = None
        attempt = 0
        while True:
            slot = await self._gate.enter(ticket)
            now = self._clock.now()
            deadline = now + self._seconds if deadline is None else deadline
            attempt += 1
            try:
                return await self._one(once, slot, deadline - now)
            except Setback as setback:
                setback.attempts = attempt
                pause = self._pause(setback, attempt)
                if not setback.again or attempt >= self._most or self._clock.now() + pause >= deadline:
                    raise
            if pause:
                await self._clock.sleep(pause)

    async def _one(self, once: Callable[[float], Awaitable[T]], slot: Slot, seconds: float) -> T:
        good = pushed_back = False
        pause = 0.0
        try:
            if seconds <= 0:
                raise Setback(ModelFailureKind.TIMEOUT, "no time left to try again")
            self.made += 1
            answer = await once(seconds)
            good = True
            return answer
        except Setback as setback:
            pushed_back = setback.pushed_back
            good = setback.status == 200
            if pushed_back:
                pause = min(setback.after or 0.0, self._seconds)
            raise
        finally:
            self._gate.leave(slot, good=good, pushed_back=pushed_back, pause=pause)

    def _pause(self, setback: Setback, attempt: int) -> float:
        """Seconds until the next try: what the endpoint asked for, else longer each time."""
        if not setback.backs_off:
            return 0.0
        if setback.after is not None:
            return setback.after
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
        return longest * self._random.uniform(0.5, 1.0)
