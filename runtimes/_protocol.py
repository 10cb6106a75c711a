"""What a runtime promises: where untrusted code runs, and what can be asked of it.

A *runtime* makes *instances*. An instance is one isolated place with one workspace: files, at most one live
Python session, at most one live shell, and any number of single commands beside them. `fork()` makes an
independent instance out of a live one.

Only the standard library is imported here: the programs that build sandboxes import this package too.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, Self

__all__ = [
    "Capabilities",
    "Display",
    "ExecResult",
    "FileInfo",
    "Fork",
    "Instance",
    "InstanceSpec",
    "Language",
    "Limits",
    "Outcome",
    "OutputSink",
    "PythonError",
    "RunResult",
    "Runtime",
    "Snapshot",
    "Stream",
    "Usage",
]

Language = Literal["python", "bash"]
"""The two kinds of live session that an instance can hold."""

OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Called with each piece of output as it comes; must not block."""

WORKSPACE = "/home/agent"
"""Where the workspace lies inside every instance: the home and the first working directory."""

MIB = 1024 * 1024


class Outcome(StrEnum):
    """How a run ended, as the runtime saw it. The program's own success is another matter: see `exit_code`, `error`."""

    OK = "ok"
    """It ran to its end, well or badly."""
    TIMEOUT = "timeout"
    """The wall-clock limit was hit; its processes were killed."""
    CPU_LIMIT = "cpu_limit"
    """The CPU limit was hit; its processes were killed."""
    OUT_OF_MEMORY = "out_of_memory"
    """The memory limit was hit."""
    TOO_MANY_PROCESSES = "too_many_processes"
    """The process limit was hit."""
    FILE_TOO_LARGE = "file_too_large"
    """A file grew past the file-size limit, or the workspace is full."""
    OUTPUT_LIMIT = "output_limit"
    """More output than allowed; its processes were killed."""
    INTERRUPTED = "interrupted"
    """`interrupt()` was called."""
    ENDED = "ended"
    """The session's own process ended during the run (`exit`, a crash, a kill)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one instance. `None` means no limit of that kind."""

    wall_seconds: float | None = 60.0
    """Time for one run or command, unless the call names another."""
    cpu_seconds: float | None = None
    """CPU time for one run or command, its children included."""
    memory_bytes: int | None = 2048 * MIB
    """Memory of the whole instance where there are cgroups, its files (which lie in memory) counted in; of each
    process where there are none."""
    processes: int | None = 256
    """Processes and threads of the whole instance."""
    file_bytes: int | None = 1024 * MIB
    """Size of one file."""
    disk_bytes: int = 1024 * MIB
    """Size of all files of the instance together."""
    files: int = 200_000
    """Number of files of the instance."""
    output_bytes: int = 16 * MIB
    """stdout and stderr of one run together."""
    open_files: int = 1024
    """Open descriptors of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """What an instance is to be."""

    limits: Limits = Limits()
    """Its limits."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables added to the small clean set that every instance has. Nothing of the host's is taken over."""
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Read-only folders: absolute path inside -> path on the host."""
    warm: frozenset[Language] = frozenset()
    """Sessions to have ready when `start` returns; the others start at first use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a runtime can do on this machine."""

    fork: Literal["live", "replay", "none"]
    """`live`: a fork carries running state. `replay`: only by doing everything again. `none`: not at all."""
    snapshot: bool
    """Files can be saved and brought back."""
    network: bool
    """Instances can be given a network."""
    gpu: bool
    """Instances can be given a GPU."""
    screen: bool
    """Instances have a screen."""
    root: bool
    """A command can run as (a harmless) root inside."""
    notes: tuple[str, ...] = ()
    """One line for each protection or ability that this machine lacks, and how to get it."""


@dataclass(frozen=True, slots=True)
class Display:
    """Something a Python run showed: a plot, a table, rich output."""

    mime: str
    """Its type: `image/png`, `application/vnd.agentflow.table+json`, `text/html`, …"""
    data: bytes
    """Its content."""


@dataclass(frozen=True, slots=True)
class PythonError:
    """The exception that ended a Python run."""

    type: str
    """Class name."""
    message: str
    """`str()` of the exception."""
    traceback: str
    """The formatted traceback, without frames of the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of running source text in a live session."""

    outcome: Outcome
    """How it ended."""
    stdout: str = ""
    """What it printed, invalid UTF-8 replaced; on `output_limit` the part that fitted."""
    stderr: str = ""
    """What it printed to stderr."""
    exit_code: int | None = None
    """bash: the status of the last command."""
    value: str | None = None
    """python: `repr` of the last expression, if it had a value other than `None`."""
    error: PythonError | None = None
    """python: the uncaught exception."""
    displays: tuple[Display, ...] = ()
    """python: plots, tables and other rich output, in order."""
    cwd: str = ""
    """The session's working directory afterwards."""
    state_lost: bool = False
    """The session's process had to be (or was) ended: the next run starts a fresh one. Files are kept."""
    fresh: bool = False
    """With ``state_lost``: the session's process had ended since the last run, and this run began a fresh one."""
    detail: str = ""
    """One line on a non-ok outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What came of a single command."""

    outcome: Outcome
    """How it ended."""
    exit_code: int
    """Its status; 128 + n when signal n ended it."""
    stdout: bytes
    """Its standard output."""
    stderr: bytes
    """Its standard error."""
    detail: str = ""
    """One line on a non-ok outcome."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of an instance's file system."""

    path: str
    """Absolute path inside."""
    kind: Literal["file", "directory", "symlink", "other"]
    """What it is; a symlink is not followed."""
    size: int
    """Bytes."""
    mode: int
    """Permission bits."""
    modified: float
    """Seconds since the epoch."""
    target: str | None = None
    """Where a symlink points."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an instance uses now."""

    memory_bytes: int
    """Memory, of all its processes."""
    processes: int
    """Processes, the session's own included."""
    cpu_seconds: float
    """CPU time of its living processes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of an instance at one instant, kept outside of it: bytes of a tar archive."""

    archive: bytes
    """The archive; paths are absolute inside the instance."""


class Stream(Protocol):
    """A running command with live pipes. Leaving its context kills the command and all it started."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    async def send(self, data: bytes) -> None:
        """Write to its standard input."""
        ...

    async def close_stdin(self) -> None:
        """Close its standard input."""
        ...

    def receive(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Its output as it comes, until both pipes close."""
        ...

    async def wait(self) -> int:
        """Its exit status; 128 + n when signal n ended it."""
        ...

    async def kill(self) -> None:
        """End it and all it started."""
        ...


@dataclass(frozen=True, slots=True)
class Fork:
    """The result of forking."""

    instance: "Instance"
    """The independent copy."""
    left_behind: tuple[str, ...] = ()
    """One line for each thing that could not be carried: background jobs, threads, sockets, …"""


class Instance(Protocol):
    """One isolated place. Every method raises `InstanceGone` after the end.

    Paths are resolved inside the instance by the kernel: relative ones from the workspace; `..` and symlinks
    can't leave it. File operations raise the matching `OSError` (`FileNotFoundError`, `PermissionError`, …).
    """

    @property
    def id(self) -> str:
        """A name that is unique in its runtime."""
        ...

    @property
    def spec(self) -> InstanceSpec:
        """What it was started as."""
        ...

    async def run(
        self,
        language: Language,
        source: str,
        *,
        timeout: float | None = None,
        on_output: OutputSink | None = None,
        stdin_open: bool = False,
    ) -> RunResult:
        """Run source text in the live session of that language; start the session if there is none.

        Runs in one language queue up; the two languages are independent. With `stdin_open` (bash) the command
        reads what `send_input` sends; otherwise its standard input is empty. Cancelling kills what ran.
        """
        ...

    async def send_input(self, language: Language, data: bytes) -> None:
        """Feed the standard input of the run in progress."""
        ...

    async def interrupt(self, language: Language) -> bool:
        """Interrupt the run in progress, as Ctrl-C would; `False` if nothing runs."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        on_output: OutputSink | None = None,
    ) -> ExecResult:
        """Run one command to its end. It and all it started is gone afterwards."""
        ...

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Stream:
        """Start one command with live pipes."""
        ...

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a regular file."""
        ...

    async def write(self, path: str, data: bytes, *, append: bool = False, executable: bool = False) -> None:
        """Write a regular file; parents are made; replaced in one step unless `append`."""
        ...

    async def list(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """Entries of a directory, sorted by path; symlinks are not followed."""
        ...

    async def stat(self, path: str) -> FileInfo:
        """One entry, not following a symlink at the end."""
        ...

    async def make_directory(self, path: str) -> None:
        """Make a directory with its parents; fine if it is there."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or a directory with all in it."""
        ...

    async def move(self, source: str, destination: str, *, replace: bool = False) -> None:
        """Rename; `FileExistsError` where the destination is there, unless `replace`."""
        ...

    async def fork(self) -> Fork:
        """An independent live copy: files, interpreter, shell. Waits for running calls.

        :raises CannotFork: if the live state can't be copied; the instance goes on unharmed.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Its files now."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Put its files back to a snapshot. Live sessions end."""
        ...

    async def usage(self) -> Usage:
        """What it uses now."""
        ...

    async def stop(self) -> None:
        """End it: every process, every file. Fine if it has ended."""
        ...


class Runtime(Protocol):
    """A place where instances are made. An async context manager: leaving it ends all of them."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do on this machine."""
        ...

    @property
    def alive(self) -> bool:
        """It can make instances: false before it is entered, after it is left, and once what it stands on has died."""
        ...

    async def start(self, spec: InstanceSpec | None = None) -> Instance:
        """A new instance.

        :raises IsolationUnavailable: if its isolation can't be had on this machine.
        """
        ...
