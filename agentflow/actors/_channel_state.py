"""State that the ends of one channel share."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

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
