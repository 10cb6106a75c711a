"""The deadlines of the questions to one actor, kept by one timer."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from agentflow.actors._clock import Clock, Timer


class Deadlines:
    """Fails answers that don't come in time.

    A timer for each question would cost as much as the question. Questions are answered in the order in which they
    were asked, so those that are done are found at the head of one queue.
    """

    __slots__ = ("_alarm", "_alarm_at", "_clock", "_expired", "_open")

    def __init__(self, clock: Clock, expired: Callable[[], Exception]) -> None:
        self._clock = clock
        self._expired = expired
        self._open: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._alarm: Timer | None = None
        self._alarm_at = math.inf

    def add(self, answer: asyncio.Future[Any], seconds: float) -> None:
        """The answer must come within some time."""
        waiting = self._open
        while waiting and waiting[0][1].done():
            waiting.popleft()
        until = self._clock.now() + seconds
        waiting.append((until, answer))
        if until < self._alarm_at:
            self._set_alarm(until)

    def close(self) -> None:
        """No more answers will be waited for."""
        self._open.clear()
        self._set_alarm(math.inf)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = None if at == math.inf else self._clock.call_later(at - self._clock.now(), self._ring)

    def _ring(self) -> None:
        due = self._alarm_at
        waiting = [(until, answer) for until, answer in self._open if not answer.done()]
        for until, answer in waiting:
            if until <= due:
                answer.set_exception(self._expired())
        self._open = deque((until, answer) for until, answer in waiting if until > due)
        self._alarm = None
        self._set_alarm(min((until for until, _ in self._open), default=math.inf))
