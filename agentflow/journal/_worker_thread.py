"""Thread that runs one function after another for an event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Lane:
    """One thread with a queue; it starts with the first job.

    A round trip costs the loop a third of an executor's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Work[Any] | None] = SimpleQueue()
        self._thread: Thread | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """Run a function in the thread; return or raise its outcome.

        If the caller is cancelled, a job that has not begun is dropped, and a running one ends unobserved.
        """
        if self._thread is None:
            # A daemon thread, so that a program that must exit does not wait for a database.
            self._thread = Thread(target=_work_off, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Work(work, answer))
        return await answer

    def close(self) -> None:
        """End the thread after all its jobs."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


class _Work(Generic[T]):
    """One job and its waiting caller."""

    __slots__ = ("_answer", "_do")

    def __init__(self, do: Callable[[], T], answer: asyncio.Future[T]) -> None:
        self._do = do
        self._answer = answer

    def do(self) -> None:
        """Run the job and notify the loop."""
        if self._answer.cancelled():
            return
        try:
            result = self._do()
        # Boundary of the thread: every exception belongs to the caller.
        except BaseException as error:
            self._tell(self._fail, error)
        else:
            self._tell(self._succeed, result)

    def _tell(self, how: Callable[[R], None], what: R) -> None:
        # A closed loop has no waiting caller.
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
        # Drop the reference before waiting for the next job: it holds the data to write.
        del work
