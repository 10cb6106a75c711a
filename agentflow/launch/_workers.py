"""Workers of this machine: ordinary run processes, restarted when they crash, that share a journal."""

import errno
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from agentflow._decoding import DECODE_ERRORS
from agentflow.actors import (
    Backoff,
    ChildSpec,
    Context,
    Process,
    ProcessEnded,
    Restart,
    RestartLimitReached,
    Supervisor,
)
from agentflow.errors import StopCause

MAX_RESTARTS: Final = 10
"""Number of restarts of a worker in a minute after which it counts as failed."""
STOP_SECONDS: Final = 30.0
"""Time that a worker gets to stop in order."""
_FAILED: Final = (1, 2)
"""Statuses of a run that would fail again."""
_STOPPED: Final = 3
_INTERRUPTED: Final = 130
_TAIL: Final = 64 * 1024
"""Bytes read from the end of what a run printed, and the room on the disk below which it could not print."""
_PREFIX: Final = "agentflow-worker"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class WorkerCommand:
    """Command of a worker, as one machine runs it."""

    words: tuple[str, ...]
    """Arguments of `agentflow`."""
    folder: str | None = None
    """Working directory; `None`: that of the process that starts it."""
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables beside those of the process that starts it."""
    shares_journal: bool = True
    """Its results are in a journal, so its output directory is temporary. A training writes into its own."""


class WorkerEnd(NamedTuple):
    """End of a worker."""

    status: int
    """Exit status of its run."""
    message: str = ""
    """Reason of an early end or a failure, in one line."""
    cause: str = ""
    """Cause of an early end."""


class _Worker:
    """Child that runs the command once. A run that was killed is a crash; every other end is kept."""

    def __init__(self, command: WorkerCommand, workers: "LocalWorkers") -> None:
        self._command = command
        self._workers = workers
        self._process: Process | None = None

    async def run(self, context: Context) -> None:
        """Run the command until it ends.

        :raises ProcessEnded: if it was killed.
        """
        context.ready()
        if self._workers.stopping:
            self._workers.keep_end(WorkerEnd(_INTERRUPTED))
            return
        with _temporary_folder() as folder:
            self._workers.keep_end(await self._run_in(folder, context))

    def stop(self) -> None:
        """Ask the run to stop in order; asked again, it does not wait for calls in flight."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    async def _run_in(self, folder: Path, context: Context) -> WorkerEnd:
        output, errors = folder / "output", folder / "errors"
        temporary = (f"output_dir={folder / 'files'}",) if self._command.shares_journal else ()
        words = [*self._command.words, "--json", *temporary]
        with output.open("wb") as out, errors.open("wb") as err:
            self._process = process = Process(
                [sys.executable, "-m", "agentflow.cli", *words],
                env={**os.environ, **dict(self._command.environment)},
                cwd=self._command.folder,
                stdout=out,
                stderr=err,
            )
            status = 0
            self._workers.started(self)
            try:
                await process.run(context)
            except ProcessEnded as ended:
                status = ended.status
                if status not in (*_FAILED, _STOPPED) and not self._workers.stopping:
                    raise
            except FileNotFoundError:
                return WorkerEnd(2, f"{self._command.folder}: no such folder on this machine")
            finally:
                self._workers.ended(self)
        return _end_of(status, output, errors)


class LocalWorkers:
    """Workers of this machine.

    Example::

        ends = await LocalWorkers(WorkerCommand(("synth", "config.yaml", "journal=postgresql://…")), 4).run()
    """

    def __init__(self, command: WorkerCommand, number: int) -> None:
        """:param number: number of run processes."""
        self.stopping = False
        """They were asked to stop, or one of them has failed."""
        self._command = command
        self._number = number
        self._ends: list[WorkerEnd] = []
        self._live: set[_Worker] = set()
        self._over = anyio.Event()

    @property
    def active(self) -> int:
        """Number of running processes."""
        return len(self._live)

    async def run(self) -> Sequence[WorkerEnd]:
        """Run all of them to their ends. After a failure the others are stopped."""
        await anyio.to_thread.run_sync(_remove_abandoned)
        specs = [
            ChildSpec(
                id=f"worker {number}",
                start=lambda: _Worker(self._command, self),
                restart=Restart.TRANSIENT,
                shutdown=STOP_SECONDS,
            )
            for number in range(1, self._number + 1)
        ]
        intensity = MAX_RESTARTS * self._number
        backoff = Backoff(initial=0.5, maximum=4.0)
        try:
            async with Supervisor(specs, intensity=intensity, period=60, backoff=backoff, name="workers"):
                await self._over.wait()
        except RestartLimitReached:
            message = f"its runs were killed more than {intensity} times in a minute; check the memory of the machine"
            return [WorkerEnd(1, message)]
        return self._ends

    def stop(self) -> None:
        """Stop all in order; called again, they do not wait for calls in flight."""
        self.stopping = True
        for worker in self._live:
            worker.stop()

    def started(self, worker: _Worker) -> None:
        """Note a running process."""
        self._live.add(worker)

    def ended(self, worker: _Worker) -> None:
        """Note that a process has ended."""
        self._live.discard(worker)

    def keep_end(self, end: WorkerEnd) -> None:
        """Keep the end of a worker."""
        self._ends.append(end)
        if end.status in _FAILED:
            self.stop()
        if len(self._ends) == self._number:
            self._over.set()


@contextmanager
def _temporary_folder() -> Generator[Path]:
    """Create a folder of a worker, with a lock of this process, and remove it at the end."""
    # It is locked before it gets the name by which other launches look for abandoned ones.
    unnamed = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}-"))
    lock = os.open(unnamed, _FOLDER)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = unnamed.name.rpartition("-")[2]
        folder = unnamed.rename(unnamed.with_name(f"{_PREFIX}-{os.geteuid()}-{name}"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _remove_abandoned() -> None:
    """Remove the folders of this user's launches that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-{os.geteuid()}-*"):
        try:
            lock = os.open(folder, _FOLDER)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _end_of(status: int, output: Path, errors: Path) -> WorkerEnd:
    """Return the end of a run with the reason that it printed."""
    if status == 0:
        return WorkerEnd(0)
    last_line = _last_line(output)
    try:
        printed = msgspec.json.decode(last_line, type=_Printed)
    except DECODE_ERRORS:
        printed = _Printed()
    if printed.stopped is not None:
        return WorkerEnd(status, printed.stopped.message, printed.stopped.cause)
    if shutil.disk_usage(output.parent).free < _TAIL:
        # It could not begin, or not say why it ended.
        why = f"can't be written: {os.strerror(errno.ENOSPC)}; fix it and run the same command again"
        return WorkerEnd(_STOPPED, f"{output.parent.parent}: {why}", StopCause.JOURNAL)
    last_line = printed.error or _last_line(errors).decode(errors="replace")
    return WorkerEnd(status, last_line.removeprefix("agentflow: "))


class _Stop(msgspec.Struct):
    cause: str
    message: str


class _Printed(msgspec.Struct):
    stopped: _Stop | None = None
    error: str = ""


def _last_line(file: Path) -> bytes:
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - _TAIL))
        return lines.read().rstrip().rpartition(b"\n")[2]
