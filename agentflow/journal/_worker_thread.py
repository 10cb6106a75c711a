"""A thread that does one thing after another for an event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

__all__ = ["Lane"]

T = TypeVar("T")
R = TypeVar("R")


class Lane:
    """One thread and the queue in front of it; it starts with the first piece of work.

    A trip there and back costs the loop a third of what an executor's does.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Work[Any] | None] = SimpleQueue()
        self._thread: Thread | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """What it gives or raises.

        If the caller is cancelled, work that was not begun is not done, and other work ends unseen.
        """
        if self._thread is None:
            # A daemon, so that a program which was told to end does not wait for a database.
            self._thread = Thread(target=_work_off, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Work(work, answer))
        return await answer

    def close(self) -> None:
        """End the thread, after all that it was given."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


class _Work(Generic[T]):
    """Something to do, and who waits for it."""

    __slots__ = ("_answer", "_do")

    def __init__(self, do: Callable[[], T], answer: asyncio.Future[T]) -> None:
        self._do = do
        self._answer = answer

    def do(self) -> None:
        """Do it, and tell the loop."""
        if self._answer.cancelled():
            return
        try:
            result = self._do()
        # The edge of the thread: whatever it is belongs to who asked.
        except BaseException as error:
            self._tell(self._fail, error)
        else:
            self._tell(self._succeed, result)

    def _tell(self, how: Callable[[R], None], what: R) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._answer.get_loop().call_soon_threadsafe(how, what)

    def _succeed(self, result: T) -> None:
        if not self._answer.done():
            self._answer.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


def _work_off(queue: SimpleQueue[_Work[Any] | None]) -> None:
    while (work := queue.get()) is not None:
        work.do()
        # Not kept until the next one comes: it holds what is to be written.
        del work
