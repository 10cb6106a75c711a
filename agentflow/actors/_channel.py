"""A bounded queue between tasks, fast because it does not yield for every message."""

import asyncio
from collections import deque
from typing import Generic, NamedTuple, Self, TypeVar

from agentflow.actors._channel_state import ChannelState, Waiting, promise, wake_without_promise
from agentflow.actors._errors import ChannelClosed, ChannelEnded, WouldBlock
from agentflow.errors import ConfigurationError

T = TypeVar("T")

YIELD_EVERY = 256
"""Messages that one end handles in a row before it lets other tasks run."""


class ChannelStatistics(NamedTuple):
    """A channel at one instant."""

    capacity: int
    """Messages that it can hold."""
    buffered: int
    """Messages that it holds."""
    senders: int
    """Open senders."""
    receivers: int
    """Open receivers."""
    waiting_senders: int
    """Tasks that wait for room."""
    waiting_receivers: int
    """Tasks that wait for a message."""


class Channel(Generic[T]):
    """A bounded queue with any number of senders and receivers; each message goes to one receiver.

    A full channel makes its senders wait. Who waits is served in order, and nobody overtakes. When the last
    sender closes, receivers get what is left and then the end; when the last receiver closes, senders fail
    and what is left is dropped. A `send` that raises has not sent, a `receive` that raises has not taken:
    cancelling loses nothing. It belongs to one event loop; it is not for threads.
    """

    __slots__ = ("_state",)

    def __init__(self, capacity: int = 1024) -> None:
        if capacity < 1:
            raise ConfigurationError(f"Channel(capacity={capacity}): give it room for 1 message at least")
        self._state: ChannelState[T] = ChannelState(capacity)

    def sender(self) -> "Sender[T]":
        """A new sending end.

        :raises ChannelClosed: if the last sender was closed before.
        """
        return Sender(self._state)

    def receiver(self) -> "Receiver[T]":
        """A new receiving end.

        :raises ChannelClosed: if the last receiver was closed before.
        """
        return Receiver(self._state)

    def statistics(self) -> ChannelStatistics:
        """The channel now."""
        state = self._state
        return ChannelStatistics(
            capacity=state.capacity,
            buffered=len(state.buffer),
            senders=state.senders,
            receivers=state.receivers,
            waiting_senders=len(state.waiting_senders or ()),
            waiting_receivers=len(state.waiting_receivers),
        )


class _End(Generic[T]):
    """What both ends have in common."""

    __slots__ = ("_buffer", "_open", "_state", "_turns")

    def __init__(self, state: ChannelState[T]) -> None:
        self._state = state
        self._buffer = state.buffer
        self._open = True
        # How often this end may act before others must run; 0 once it is closed, so that one check covers both.
        self._turns = YIELD_EVERY

    async def _take_turns(self) -> None:
        """Let others run: an end that never has to wait must not keep the loop for itself."""
        if self._open:
            self._turns = YIELD_EVERY
            await asyncio.sleep(0)

    def _queue_up(self, waiting: Waiting) -> asyncio.Future[bool]:
        """Wait for a promise; the result is `False` when woken without one, because something was closed."""
        waiter: asyncio.Future[bool] = asyncio.Future()
        waiting.append((waiter, self))
        self._turns = YIELD_EVERY
        return waiter

    def _leave(self, waiting: Waiting, waiter: asyncio.Future[bool]) -> None:
        """Don't wait any longer, because the task was cancelled."""
        if (waiter, self) in waiting:
            waiting.remove((waiter, self))
        elif not waiter.cancelled() and waiter.result():
            self._pass_on()

    def _pass_on(self) -> None:
        """Offer to others what this end was promised and won't use."""
        raise NotImplementedError

    def close(self) -> None:
        """Close this end; closing twice is fine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Sender(_End[T]):
    """A sending end of a channel; a context manager that closes it."""

    __slots__ = ()

    def __init__(self, state: ChannelState[T]) -> None:
        if state.senders_gone:
            raise ChannelClosed("the last sender was closed")
        super().__init__(state)
        state.senders += 1

    async def send(self, message: T) -> None:
        """Send; wait for room.

        :raises ChannelClosed: if this sender is closed or no receiver is left.
        """
        state = self._state
        self._turns = turns = self._turns - 1
        if turns > 0 and state.room:
            state.room -= 1
        else:
            await self._wait_for_room()
        self._buffer.append(message)
        if not state.waiting_receivers or not promise(state.waiting_receivers):
            state.ready += 1

    def send_nowait(self, message: T) -> None:
        """Send at once.

        :raises WouldBlock: if the channel is full.
        :raises ChannelClosed: if this sender is closed or no receiver is left.
        """
        state = self._state
        if not state.room or not self._open:
            self._check()
            raise WouldBlock("the channel is full")
        state.room -= 1
        self._buffer.append(message)
        if not promise(state.waiting_receivers):
            state.ready += 1

    def clone(self) -> "Sender[T]":
        """Another sender of the same channel, closed on its own.

        :raises ChannelClosed: if this sender is closed.
        """
        self._check()
        return Sender(self._state)

    def close(self) -> None:
        """Close this sender; closing twice is fine. Tasks that wait in its `send` fail."""
        if self._open:
            self._open = False
            self._turns = 0
            wake_without_promise(self._state.waiting_senders, self)
            self._state.close_sender()

    async def _wait_for_room(self) -> None:
        state = self._state
        if self._turns <= 0:
            await self._take_turns()
        self._check()
        if state.room:
            state.room -= 1
            return
        if (waiting := state.waiting_senders) is None:
            waiting = state.waiting_senders = deque()
        waiter = self._queue_up(waiting)
        try:
            promised = await waiter
        except asyncio.CancelledError:
            self._leave(waiting, waiter)
            raise
        try:
            self._check()
        except ChannelClosed:
            if promised:
                self._pass_on()
            raise

    def _check(self) -> None:
        if not self._open:
            raise ChannelClosed("this sender is closed")
        if self._state.receivers_gone:
            raise ChannelClosed("no receiver is left")

    def _pass_on(self) -> None:
        self._state.offer_room()


class Receiver(_End[T]):
    """A receiving end of a channel; a context manager that closes it, and an async iterator until the end."""

    __slots__ = ()

    def __init__(self, state: ChannelState[T]) -> None:
        if state.receivers_gone:
            raise ChannelClosed("the last receiver was closed")
        super().__init__(state)
        state.receivers += 1

    async def receive(self) -> T:
        """The next message; wait for it.

        :raises ChannelEnded: if all senders are closed and nothing is left.
        :raises ChannelClosed: if this receiver is closed.
        """
        state = self._state
        self._turns = turns = self._turns - 1
        if turns > 0 and state.ready:
            state.ready -= 1
        else:
            if turns <= 0:
                await self._take_turns()
            self._check()
            # Not a coroutine of its own: each question to an actor comes along here.
            while not state.ready:
                waiter = self._queue_up(state.waiting_receivers)
                try:
                    promised = await waiter
                except asyncio.CancelledError:
                    self._leave(state.waiting_receivers, waiter)
                    raise
                if promised and self._open:
                    break
                if promised:
                    self._pass_on()
                self._check()
            else:
                state.ready -= 1
        if state.waiting_senders or state.senders_gone:
            return self._take()
        state.room += 1
        return self._buffer.popleft()

    # `ChannelEnded` is a `StopAsyncIteration`, so receiving is iterating.
    __anext__ = receive

    def receive_nowait(self) -> T:
        """The next message, if it is there.

        :raises WouldBlock: if there is none.
        :raises ChannelEnded: if all senders are closed and nothing is left.
        :raises ChannelClosed: if this receiver is closed.
        """
        self._check()
        if not self._state.ready:
            raise WouldBlock("the channel is empty")
        self._state.ready -= 1
        return self._take()

    def clone(self) -> "Receiver[T]":
        """Another receiver of the same channel, closed on its own.

        :raises ChannelClosed: if this receiver is closed.
        """
        if not self._open:
            raise ChannelClosed("this receiver is closed")
        return Receiver(self._state)

    def close(self) -> None:
        """Close this receiver; closing twice is fine. Tasks that wait in its `receive` fail."""
        if self._open:
            self._open = False
            self._turns = 0
            wake_without_promise(self._state.waiting_receivers, self)
            self._state.close_receiver()

    def __aiter__(self) -> Self:
        return self

    def _take(self) -> T:
        """Take a message that is this end's to take."""
        state = self._state
        message = self._buffer.popleft()
        state.offer_room()
        if state.is_over():
            wake_without_promise(state.waiting_receivers)
        return message

    def _check(self) -> None:
        if not self._open:
            raise ChannelClosed("this receiver is closed")
        if self._state.is_over():
            raise ChannelEnded("all senders are closed and nothing is left")

    def _pass_on(self) -> None:
        self._state.offer_message()
