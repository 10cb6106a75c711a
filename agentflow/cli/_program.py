"""Running a run as a program: signals, progress display, report."""

import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Protocol, TextIO

import anyio
import anyio.abc

from agentflow._terminal import printable
from agentflow.cli._display import RunView, ViewedStatus, open_display
from agentflow.cli._output import Exit, print_json, write_out
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped
from agentflow.extras import missing_extra

LAST_SECONDS = 5.0
"""Time to close everything after a second signal; after this the process exits."""


class StoppableRun(Protocol):
    """A run that can be stopped."""

    def stop(self, why: str = ...) -> None:
        """End early."""
        ...

    def stop_now(self) -> None:
        """Do not wait for effects in flight."""
        ...


def check_trainer(command: str) -> None:
    """Check that a command can train, before it imports anything else: other extras have some of the same libraries.

    :raises ConfigurationError: one line with the extra `train`, if PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise ConfigurationError(missing_extra(command, "train"))


def watch_run(
    run: StoppableRun,
    work: Callable[[], Awaitable[object]],
    view: RunView[ViewedStatus],
    *,
    as_json: bool,
    fields: Callable[[], Mapping[str, object]],
    show: Callable[[], None],
) -> int:
    """Run it with signal handling and a progress display, print the report and return the exit status.

    :param work: executes the run.
    :param fields: returns the fields of the report as JSON, beside `status` and `stopped`.
    :param show: prints the report as text.
    :raises AgentFlowError: if the run failed.
    """
    with open_display(view) as show_progress:
        program = _SignalledRun(run, work, show_progress)
        # uvloop is an extra: 10 % less CPU if it is installed.
        anyio.run(program.run, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    status, stopped = program.status(), program.stopped

    def report() -> None:
        if stopped is not None:
            # On a full disk the reason may still fit into the report.
            with suppress(OSError):
                sys.stderr.write(f"agentflow: {printable(stopped.message)}\n")
        if not as_json:
            show()
            return
        reason = None if stopped is None else {"cause": stopped.cause, "message": stopped.message}
        print_json({"status": int(status), "stopped": reason, **fields()})

    return status if write_out(report) else Exit.INTERRUPTED


class _SignalledRun:
    """A run with its signals and its progress display."""

    def __init__(
        self,
        run: StoppableRun,
        work: Callable[[], Awaitable[object]],
        show_progress: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        self.stopped: RunStopped | None = None
        """Reason of an early end."""
        self._failed: AgentFlowError | None = None
        self._run = run
        self._work = work
        self._show_progress = show_progress
        self._interrupted = False

    def status(self) -> Exit:
        """Return the exit status.

        :raises AgentFlowError: if the run failed.
        """
        if self._failed is not None:
            raise self._failed
        if self.stopped is None:
            return Exit.DONE
        return Exit.INTERRUPTED if self._interrupted else Exit.STOPPED

    async def run(self) -> None:
        """Execute the run and handle signals."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._listen)
            tasks.start_soon(self._show_progress)
            for stream in (sys.stdout, sys.stderr):
                if _is_pipe(stream):
                    tasks.start_soon(self._watch_reader, stream.fileno())
            try:
                await self._work()
            except RunStopped as stopped:
                self.stopped = stopped
            except AgentFlowError as error:
                self._failed = error
            tasks.cancel_scope.cancel()

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            first = await anext(signals)
            self._stop(f"received {first.name}")
            await anext(signals)
            self._run.stop_now()
            with anyio.move_on_after(LAST_SECONDS):
                await anext(signals)
            # Safe: a run that is killed at any time can be resumed.
            os._exit(Exit.INTERRUPTED)

    async def _watch_reader(self, descriptor: int) -> None:
        """Stop when the reader of the output is gone."""
        # The writing end of a pipe becomes readable only when the reader closes it.
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
