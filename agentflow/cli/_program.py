"""A run as a program: its signals, its screen, the reader of its output."""

import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Protocol, TextIO

import anyio
import anyio.abc

from agentflow.cli._exits import Exit
from agentflow.cli._screen import Screen
from agentflow.errors import AgentFlowError, RunStopped

__all__ = ["Program", "ending_of", "run_program", "write_out"]

LAST_SECONDS = 5.0
"""After a second signal everything is closed at once; what takes longer than this is left to the system."""


class Running(Protocol):
    """A run that can be ended."""

    def stop(self, why: str = ...) -> None:
        """End early."""
        ...

    def hurry(self) -> None:
        """Do not wait for what is in flight."""
        ...


def run_program(program: "Program") -> None:
    """Run it in a loop of its own."""
    # The faster loop is an extra: a tenth less CPU where it is installed.
    anyio.run(program.go, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def write_out(say: Callable[[], None]) -> bool:
    """Have something said on stdout; whether anybody read it."""
    try:
        say()
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; what is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def ending_of(ended: RunStopped | None, status: Exit) -> dict[str, object]:
    """How a run ended, as fields of what its command prints as JSON."""
    stopped = None if ended is None else {"cause": ended.cause, "message": ended.message}
    return {"status": int(status), "stopped": stopped}


class Program:
    """A run with its signals and its screen."""

    def __init__(self, run: Running, work: Callable[[], Awaitable[object]], screen: Screen) -> None:
        """Describe it.

        :param work: has the run do everything.
        """
        self.ended: RunStopped | None = None
        """Why it ended early, if it did."""
        self._failed: AgentFlowError | None = None
        self._run = run
        self._work = work
        self._screen = screen
        self._interrupted = False

    def status(self) -> Exit:
        """The exit status.

        :raises AgentFlowError: if it failed.
        """
        if self._failed is not None:
            raise self._failed
        if self.ended is None:
            return Exit.DONE
        return Exit.INTERRUPTED if self._interrupted else Exit.STOPPED

    async def go(self) -> None:
        """Run it, listening to signals."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._listen)
            tasks.start_soon(self._screen.watch)
            for stream in (sys.stdout, sys.stderr):
                if _is_pipe(stream):
                    tasks.start_soon(self._watch_reader, stream.fileno())
            try:
                await self._work()
            except RunStopped as stopped:
                self.ended = stopped
            except AgentFlowError as error:
                self._failed = error
            tasks.cancel_scope.cancel()

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            first = await anext(signals)
            self._stop(f"{first.name} came")
            await anext(signals)
            self._run.hurry()
            with anyio.move_on_after(LAST_SECONDS):
                await anext(signals)
            # Nothing is lost by it: whatever is killed at any time goes on the same way.
            os._exit(Exit.INTERRUPTED)

    async def _watch_reader(self, descriptor: int) -> None:
        """A program whose output nobody reads any more stops."""
        # The writing end of a pipe is never readable, until its reader is gone.
        await anyio.wait_readable(descriptor)
        self._stop("its output was closed")

    def _stop(self, why: str) -> None:
        self._interrupted = True
        self._run.stop(why)


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
