"""Actors: one mailbox, one message at a time."""

import asyncio
import math
from typing import Generic, TypeVar

from agentflow.actors._channel import Channel, ChannelStatistics
from agentflow.actors._child import Context
from agentflow.actors._clock import SYSTEM_CLOCK, Clock
from agentflow.actors._deadlines import Deadlines
from agentflow.actors._errors import ActorGone, AskTimeout, ChannelClosed, WouldBlock
from agentflow.actors._exits import KILLED, NORMAL, SHUTDOWN, ExitReason

M = TypeVar("M")
R = TypeVar("R")


class Actor(Generic[M, R]):
    """Takes messages of type `M` one at a time and answers with `R`.

    What it holds is its own: nobody else touches it, and `receive` never runs twice at once. An exception in
    `receive` ends the actor (its supervisor decides what then); an outcome that is to be expected is an answer. It
    lives once: its supervisor makes another one, with an empty mailbox.
    """

    def __init__(self, *, mailbox: int = 1024) -> None:
        # Each message with the future of its answer, if somebody waits for one.
        channel: Channel[tuple[M, asyncio.Future[R] | None]] = Channel(mailbox)
        self._channel = channel
        self._sender = channel.sender()
        self._receiver = channel.receiver()
        self._clock: Clock = SYSTEM_CLOCK
        self._name = type(self).__name__
        self._deadlines: Deadlines | None = None
        self._asked: asyncio.Future[R] | None = None
        self._asked_to_end = False
        self._reason: ExitReason | None = None

    async def receive(self, message: M) -> R:
        """Handle one message; what it returns is the answer, if somebody asked."""
        raise NotImplementedError

    async def on_start(self) -> None:
        """Get ready; the supervisor waits for it."""

    async def on_stop(self, reason: ExitReason) -> None:
        """Clean up after the last message. Not called when the actor is killed."""

    @property
    def reason(self) -> ExitReason | None:
        """How it ended, as it saw it itself; `None` until then."""
        return self._reason

    async def tell(self, message: M) -> None:
        """Send a message; wait while the mailbox is full.

        :raises ActorGone: if it has ended or is stopping.
        """
        try:
            await self._sender.send((message, None))
        except ChannelClosed:
            raise ActorGone(self._name, self._reason) from None

    def tell_nowait(self, message: M) -> None:
        """Send a message at once.

        :raises WouldBlock: if the mailbox is full.
        :raises ActorGone: if it has ended or is stopping.
        """
        try:
            self._sender.send_nowait((message, None))
        except ChannelClosed:
            raise ActorGone(self._name, self._reason) from None

    async def ask(self, message: M, *, timeout: float = 5.0) -> R:
        """Send a message and wait for the answer, for `timeout` seconds in all (`inf`: for ever).

        A question that was given up before the actor came to it is never handled.

        :raises AskTimeout: if there was no answer in time.
        :raises ActorGone: if it ends before it answers.
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
                self._deadlines = Deadlines(self._clock, self._too_late)
            self._deadlines.add(answer, timeout)
        return await answer

    async def _send_in_time(self, question: tuple[M, asyncio.Future[R]], timeout: float) -> float:
        """Wait for room in the mailbox; gives the time that is left."""
        until = self._clock.now() + timeout
        with self._clock.deadline(timeout) as waiting:
            try:
                await self._sender.send(question)
            except ChannelClosed:
                raise ActorGone(self._name, self._reason) from None
        if waiting.cancelled_caught:
            raise AskTimeout(f"{self._name} had no room for the question in time")
        return until - self._clock.now()

    def stop(self) -> None:
        """Take no more messages, handle those that are there, and end."""
        self._sender.close()

    def statistics(self) -> ChannelStatistics:
        """Its mailbox now."""
        return self._channel.statistics()

    async def run(self, context: Context) -> None:
        """Live, as a supervisor's child."""
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
                    self._asked = answer
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
        if self._asked is not None:
            self._refuse(self._asked, reason)
        while True:
            try:
                _, answer = self._receiver.receive_nowait()
            except (ChannelClosed, WouldBlock):
                break
            if answer is not None:
                self._refuse(answer, reason)
        self._receiver.close()
