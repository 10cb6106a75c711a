"""How many requests an endpoint gets at a time: more while all goes well, half at once when it asks for less."""

import asyncio
import heapq
from itertools import count

from agentflow.actors import SYSTEM_CLOCK, Clock, Timer

__all__ = ["ConcurrencyLimiter", "Permit"]


class Permit:
    """Leave to make one request."""

    __slots__ = ("round",)

    def __init__(self, round_: int) -> None:
        self.round = round_
        """Since which slowing-down it is in flight."""


class ConcurrencyLimiter:
    """Adaptive concurrency: additive increase, multiplicative decrease, first come first served.

    The limit grows by one for each good answer until the endpoint first pushes back, then by one for each full round.
    A push back halves it; those of requests that were in flight at that time say nothing new and are ignored. It grows
    only while it is the limit that holds requests back.
    """

    def __init__(self, most: int, *, start: int = 64, clock: Clock = SYSTEM_CLOCK) -> None:
        """Open it.

        :param most: the limit's own limit.
        :param start: where the limit begins: high enough that a few trees, each of them eight calls wide, need not wait
            a whole answer for it to grow.
        """
        self._most = most
        self._limit = float(min(start, most))
        self._clock = clock
        self._tickets = count()
        self._waiting: list[tuple[int, asyncio.Future[Permit]]] = []
        self._in_flight = 0
        self._round = 0
        self._pushed_back = False
        self._closed_until = 0.0
        self._opening: Timer | None = None

    @property
    def in_flight(self) -> int:
        """Requests that were let in and have not left."""
        return self._in_flight

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(not permit.done() for _, permit in self._waiting)

    def ticket(self) -> int:
        """A place in the queue: whoever took it earlier goes first, also when he comes back to try again."""
        return next(self._tickets)

    async def acquire(self, ticket: int) -> Permit:
        """Wait for leave to make a request."""
        if not self._waiting and self._is_open():
            self._in_flight += 1
            return Permit(self._round)
        place: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, place))
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                # The leave came in the same moment: it goes to the next.
                self._in_flight -= 1
                self._let_in()
            raise

    def release(
        self, permit: Permit, *, good: bool = False, overloaded: bool = False, pause: float = 0.0
    ) -> None:
        """The request is over.

        :param good: it was answered.
        :param overloaded: the endpoint asked for less, or took too long.
        :param pause: nobody is let in for so many seconds.
        """
        if good and permit.round == self._round and self._in_flight >= self.limit:
            self._limit = min(self._most, self._limit + (1 / self._limit if self._pushed_back else 1))
        elif overloaded and permit.round == self._round:
            self._limit = max(1.0, self._limit / 2)
            self._round += 1
            self._pushed_back = True
        self._in_flight -= 1
        if pause > 0:
            self._close(pause)
        self._let_in()

    def _is_open(self) -> bool:
        return self._in_flight < self.limit and self._opening is None

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
            _, place = heapq.heappop(self._waiting)
            if not place.done():
                self._in_flight += 1
                place.set_result(Permit(self._round))
