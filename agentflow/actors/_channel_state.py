"""What the ends of one channel share."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

Waiting = deque[tuple[asyncio.Future[bool], object]]
"""Tasks that wait, first come first, each with the end that it waits at. Its future says whether it was promised
something (`True`) or was woken because something was closed (`False`)."""


def promise(waiting: Waiting | None) -> bool:
    """Wake the first task that still waits; `False` if none does."""
    while waiting:
        future, _ = waiting.popleft()
        if not future.done():
            future.set_result(True)
            return True
    return False


def wake_without_promise(waiting: Waiting | None, end: object = None) -> None:
    """Wake all that wait (or those at one end), so that they see what was closed."""
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
    """The queue itself, and who waits for it."""

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
        # Slots and messages that nobody was promised: whoever finds one here may take it at once. Tasks wait
        # only while the number is 0, and a task that is woken was promised one, so nobody overtakes.
        self.room = capacity
        self.ready = 0
        # Most mailboxes are never full: an empty deque for each of them would be a tenth of what an actor costs.
        self.waiting_senders: Waiting | None = None
        self.waiting_receivers: Waiting = deque()

    def offer_message(self) -> None:
        """One more message may be taken."""
        if not self.receivers_gone and not promise(self.waiting_receivers):
            self.ready += 1

    def offer_room(self) -> None:
        """One more slot may be filled."""
        if not self.receivers_gone and not promise(self.waiting_senders):
            self.room += 1

    def is_over(self) -> bool:
        """Whether nothing is left and nothing can come."""
        return self.senders_gone and not self.buffer

    def close_sender(self) -> None:
        """One sender less; with the last one comes the end."""
        self.senders -= 1
        self.senders_gone = self.senders == 0
        if self.is_over():
            wake_without_promise(self.waiting_receivers)

    def close_receiver(self) -> None:
        """One receiver less; with the last one goes what is left."""
        self.receivers -= 1
        if not self.receivers:
            self.receivers_gone = True
            self.room = self.ready = 0
            self.buffer.clear()
            wake_without_promise(self.waiting_senders)
