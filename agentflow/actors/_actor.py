"""Actors: one mailbox, one message at a time."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from agentflow.actors._channel import Channel, ChannelStatistics
from agentflow.actors._children import SYSTEM_CLOCK, Clock, Context, Timer
from agentflow.actors._errors import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    ActorGone,
    AskTimeout,
    ChannelClosed,
    ExitReason,
    WouldBlock,
)

M = TypeVar("M")
R = TypeVar("R")


class Actor(Generic[M, R]):
    """Handles messages of type `M` one at a time and answers with `R`. See docs/actors.md.

    Its state is private, and `receive` never runs twice at once. An exception in `receive` ends the actor, and its
    supervisor decides on a restart; return expected failures as answers. An actor lives once: a restart creates a new
    one with an empty mailbox.
    """

    def __init__(self, *, mailbox: int = 1024) -> None:
        # Each message with the future of its answer, if the sender waits for one.
        channel: Channel[tuple[M, asyncio.Future[R] | None]] = Channel(mailbox)
        self._channel = channel
        self._sender = channel.sender()
        self._receiver = channel.receiver()
        self._clock: Clock = SYSTEM_CLOCK
        self._name = type(self).__name__
        self._deadlines: _Deadlines | None = None
        self._pending_answer: asyncio.Future[R] | None = None
        self._asked_to_end = False
        self._reason: ExitReason | None = None

    async def receive(self, message: M) -> R:
        """Handle one message; the return value is the answer to `ask`."""
        raise NotImplementedError

    async def on_start(self) -> None:
        """Prepare; the supervisor waits for it."""

    async def on_stop(self, reason: ExitReason) -> None:
        """Clean up after the last message. Not called when the actor is killed."""

    @property
    def reason(self) -> ExitReason | None:
        """Exit reason as the actor saw it; `None` while it lives."""
        return self._reason

    async def tell(self, message: M) -> None:
        """Send a message, and wait while the mailbox is full.

        :raises ActorGone: if it has ended or is stopping.
        """
        try:
            await self._sender.send((message, None))
        except ChannelClosed:
            raise ActorGone(self._name, self._reason) from None

    def tell_nowait(self, message: M) -> None:
        """Send a message without waiting.

        :raises WouldBlock: if the mailbox is full.
        :raises ActorGone: if it has ended or is stopping.
        """
        try:
            self._sender.send_nowait((message, None))
        except ChannelClosed:
            raise ActorGone(self._name, self._reason) from None

    async def ask(self, message: M, *, timeout: float = 5.0) -> R:
        """Send a message and wait for the answer, for at most `timeout` seconds (`inf` for ever).

        A message whose sender gave up before the actor reached it is never handled.

        :raises AskTimeout: if there was no answer in time.
        :raises ActorGone: if the actor ends before it answers.
        """
        answer: asyncio.Future[R] = asyncio.Future()
        question = (message, answer)
        try:
            self._sender.send_nowait(question)
        except WouldBlock:
            timeout = await self._send_in_time(question, timeout)
        except ChannelClosed:
            raise ActorGone(self._name, self._reason) from None
        if timeout != math.inf:
            if self._deadlines is None:
                self._deadlines = _Deadlines(self._clock, self._too_late)
            self._deadlines.add(answer, timeout)
        return await answer

    async def _send_in_time(self, question: tuple[M, asyncio.Future[R]], timeout: float) -> float:
        """Wait for room in the mailbox; return the time that is left."""
        until = self._clock.now() + timeout
        with self._clock.deadline(timeout) as waiting:
            try:
                await self._sender.send(question)
            except ChannelClosed:
                raise ActorGone(self._name, self._reason) from None
        if waiting.cancelled_caught:
            raise AskTimeout(f"the mailbox of {self._name} was full until the deadline")
        return until - self._clock.now()

    def stop(self) -> None:
        """Refuse further messages, handle those in the mailbox, and end."""
        self._sender.close()

    def statistics(self) -> ChannelStatistics:
        """Return the statistics of its mailbox."""
        return self._channel.statistics()

    async def run(self, context: Context) -> None:
        """Run as a supervisor's child."""
        self._name = context.id
        self._clock = context.clock
        reason = KILLED
        try:
            await self.on_start()
            context.on_stop(self._end)
            context.ready()
            async for message, answer in self._receiver:
                if answer is None:
                    await self.receive(message)
                elif not answer.done():
                    self._pending_answer = answer
                    result = await self.receive(message)
                    if not answer.done():
                        answer.set_result(result)
            reason = SHUTDOWN if self._asked_to_end else NORMAL
        except Exception as error:
            reason = ExitReason.of(error)
            raise
        finally:
            self._close(reason)
            if context.is_ready and reason is not KILLED:
                await self.on_stop(reason)

    def _refuse(self, answer: asyncio.Future[R], reason: ExitReason) -> None:
        if not answer.done():
            answer.set_exception(ActorGone(self._name, reason))

    def _too_late(self) -> Exception:
        return AskTimeout(f"{self._name} did not answer in time")

    def _end(self) -> None:
        self._asked_to_end = True
        self.stop()

    def _close(self, reason: ExitReason) -> None:
        self._reason = reason
        self._sender.close()
        if self._deadlines is not None:
            self._deadlines.close()
        if self._pending_answer is not None:
            self._refuse(self._pending_answer, reason)
        while True:
            try:
                _, answer = self._receiver.receive_nowait()
            except (ChannelClosed, WouldBlock):
                break
            if answer is not None:
                self._refuse(answer, reason)
        self._receiver.close()


class _Deadlines:
    """Deadlines of the questions to one actor, with a single timer.

    A timer per question would cost as much as the question. Questions are answered in the order in which they
    were asked, so finished ones are at the head of the queue.
    """

    __slots__ = ("_alarm", "_alarm_at", "_clock", "_expired", "_open")

    def __init__(self, clock: Clock, expired: Callable[[], Exception]) -> None:
        self._clock = clock
        self._expired = expired
        self._open: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._alarm: Timer | None = None
        self._alarm_at = math.inf

    def add(self, answer: asyncio.Future[Any], seconds: float) -> None:
        """Set the deadline of an answer."""
        waiting = self._open
        while waiting and waiting[0][1].done():
            waiting.popleft()
        until = self._clock.now() + seconds
        waiting.append((until, answer))
        if until < self._alarm_at:
            self._set_alarm(until)

    def close(self) -> None:
        """Drop all deadlines."""
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
