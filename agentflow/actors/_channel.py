"""A bounded queue between tasks. It is fast because it does not yield for every message."""

import asyncio
from collections import deque
from typing import Generic, NamedTuple, Self, TypeVar

from agentflow.actors._errors import ChannelClosed, ChannelEnded, WouldBlock
from agentflow.errors import ConfigurationError

T = TypeVar("T")

YIELD_EVERY = 256
"""Number of messages that one end handles before it lets other tasks run."""

Waiting = deque[tuple[asyncio.Future[bool], object]]
"""Waiting tasks in order, each with its end. The future's result is `True` for a promise, and `False` for a wake-up
because an end was closed."""


def promise(waiting: Waiting | None) -> bool:
    """Wake the first task that still waits; return `False` if there is none."""
    while waiting:
        future, _ = waiting.popleft()
        if not future.done():
            future.set_result(True)
            return True
    return False


def wake_without_promise(waiting: Waiting | None, end: object = None) -> None:
    """Wake all waiting tasks, or those of one end, so that they notice a closed end."""
    if not waiting:
        return
    kept = [(future, owner) for future, owner in waiting if end is not None and owner is not end]
    woken = [future for future, owner in waiting if end is None or owner is end]
    waiting.clear()
    waiting.extend(kept)
    for future in woken:
        if not future.done():
            future.set_result(False)


class ChannelState(Generic[T]):
    """The queue, and the tasks that wait for it."""

    __slots__ = (
        "buffer",
        "capacity",
        "ready",
        "receivers",
        "receivers_gone",
        "room",
        "senders",
        "senders_gone",
        "waiting_receivers",
        "waiting_senders",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.buffer: deque[T] = deque()
        self.senders = 0
        self.receivers = 0
        self.senders_gone = False
        self.receivers_gone = False
        # Messages and free slots that are not promised to a task: anyone may take them at once. Tasks wait only while
        # the number is 0, and a woken task has a promise, so the order is kept.
        self.room = capacity
        self.ready = 0
        # Created on demand: most mailboxes are never full, and an empty deque is a tenth of an actor's memory.
        self.waiting_senders: Waiting | None = None
        self.waiting_receivers: Waiting = deque()

    def offer_message(self) -> None:
        """Offer one more message."""
        if not self.receivers_gone and not promise(self.waiting_receivers):
            self.ready += 1

    def offer_room(self) -> None:
        """Offer one more free slot."""
        if not self.receivers_gone and not promise(self.waiting_senders):
            self.room += 1

    def is_over(self) -> bool:
        """Return true if no message is left and none can come."""
        return self.senders_gone and not self.buffer

    def close_sender(self) -> None:
        """Count a closed sender; the last one ends the channel."""
        self.senders -= 1
        self.senders_gone = self.senders == 0
        if self.is_over():
            wake_without_promise(self.waiting_receivers)

    def close_receiver(self) -> None:
        """Count a closed receiver; the last one drops the buffered messages."""
        self.receivers -= 1
        if not self.receivers:
            self.receivers_gone = True
            self.room = self.ready = 0
            self.buffer.clear()
            wake_without_promise(self.waiting_senders)


class ChannelStatistics(NamedTuple):
    """State of a channel. See docs/actors.md."""

    capacity: int
    """Maximum number of buffered messages."""
    buffered: int
    """Buffered messages."""
    senders: int
    """Open senders."""
    receivers: int
    """Open receivers."""
    waiting_senders: int
    """Tasks that wait to send."""
    waiting_receivers: int
    """Tasks that wait to receive."""


class Channel(Generic[T]):
    """A bounded queue with any number of senders and receivers; each message goes to one receiver. See docs/actors.md.

    Senders wait while it is full. Waiting tasks are served in order. When the last sender closes, receivers get the
    buffered messages and then the end; when the last receiver closes, senders fail and buffered messages are dropped.
    A `send` that raises has not sent, a `receive` that raises has not taken: cancellation loses nothing. A channel
    belongs to one event loop; it is not thread-safe.
    """

    __slots__ = ("_state",)

    def __init__(self, capacity: int = 1024) -> None:
        if capacity < 1:
            raise ConfigurationError(f"Channel(capacity={capacity}): the capacity must be at least 1")
        self._state: ChannelState[T] = ChannelState(capacity)

    def sender(self) -> "Sender[T]":
        """Create a sender.

        :raises ChannelClosed: if the last sender is closed.
        """
        return Sender(self._state)

    def receiver(self) -> "Receiver[T]":
        """Create a receiver.

        :raises ChannelClosed: if the last receiver is closed.
        """
        return Receiver(self._state)

    def statistics(self) -> ChannelStatistics:
        """Return its current state."""
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
    """Common part of both ends."""

    __slots__ = ("_buffer", "_open", "_state", "_turns")

    def __init__(self, state: ChannelState[T]) -> None:
        self._state = state
        self._buffer = state.buffer
        self._open = True
        # Messages until this end must yield; 0 once it is closed, so that one check covers both.
        self._turns = YIELD_EVERY

    async def _take_turns(self) -> None:
        """Let other tasks run: an end that never waits must not monopolise the loop."""
        if self._open:
            self._turns = YIELD_EVERY
            await asyncio.sleep(0)

    def _queue_up(self, waiting: Waiting) -> asyncio.Future[bool]:
        """Wait for a promise; return `False` if woken without one, because an end was closed."""
        waiter: asyncio.Future[bool] = asyncio.Future()
        waiting.append((waiter, self))
        self._turns = YIELD_EVERY
        return waiter

    def _leave(self, waiting: Waiting, waiter: asyncio.Future[bool]) -> None:
        """Leave the queue after a cancellation."""
        if (waiter, self) in waiting:
            waiting.remove((waiter, self))
        elif not waiter.cancelled() and waiter.result():
            self._pass_on()

    def _pass_on(self) -> None:
        """Offer what this end was promised, and will not use, to the next task."""
        raise NotImplementedError

    def close(self) -> None:
        """Close this end. It may be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Sender(_End[T]):
    """Sending end of a channel; as a context manager it closes itself. See docs/actors.md."""

    __slots__ = ()

    def __init__(self, state: ChannelState[T]) -> None:
        if state.senders_gone:
            raise ChannelClosed("the last sender was closed")
        super().__init__(state)
        state.senders += 1

    async def send(self, message: T) -> None:
        """Send a message, and wait for room.

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
        """Send a message without waiting.

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
        """Create another sender of the same channel, which is closed on its own.

        :raises ChannelClosed: if this sender is closed.
        """
        self._check()
        return Sender(self._state)

    def close(self) -> None:
        """Close this sender. Tasks that wait in its `send` fail. It may be called twice."""
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
    """Receiving end of a channel; a context manager that closes itself, and an async iterator. See docs/actors.md."""

    __slots__ = ()

    def __init__(self, state: ChannelState[T]) -> None:
        if state.receivers_gone:
            raise ChannelClosed("the last receiver was closed")
        super().__init__(state)
        state.receivers += 1

    async def receive(self) -> T:
        """Receive the next message, and wait for it.

        :raises ChannelEnded: if all senders are closed and no message is left.
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
            # Inlined: every question to an actor passes here.
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

    # `ChannelEnded` is a `StopAsyncIteration`, so `receive` serves as `__anext__`.
    __anext__ = receive

    def receive_nowait(self) -> T:
        """Receive a message without waiting.

        :raises WouldBlock: if the channel is empty.
        :raises ChannelEnded: if all senders are closed and no message is left.
        :raises ChannelClosed: if this receiver is closed.
        """
        self._check()
        if not self._state.ready:
            raise WouldBlock("the channel is empty")
        self._state.ready -= 1
        return self._take()

    def clone(self) -> "Receiver[T]":
        """Create another receiver of the same channel, which is closed on its own.

        :raises ChannelClosed: if this receiver is closed.
        """
        if not self._open:
            raise ChannelClosed("this receiver is closed")
        return Receiver(self._state)

    def close(self) -> None:
        """Close this receiver. Tasks that wait in its `receive` fail. It may be called twice."""
        if self._open:
            self._open = False
            self._turns = 0
            wake_without_promise(self._state.waiting_receivers, self)
            self._state.close_receiver()

    def __aiter__(self) -> Self:
        return self

    def _take(self) -> T:
        """Take a message that was promised to this end."""
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
            raise ChannelEnded("all senders are closed and no message is left")

    def _pass_on(self) -> None:
        self._state.offer_message()
