"""Runtime contract: isolation for untrusted code.

A *runtime* makes *instances*. An instance is an isolated environment with one workspace: files, at most one live
Python session, at most one live shell, and any number of single commands beside them. `fork()` makes an
independent instance out of a live one.

Standard library only: the programs that build sandboxes import this module too.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, Literal, NamedTuple, Protocol, Self

Language = Literal["python", "bash"]
"""Languages of live sessions."""

OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Callback for each piece of output as it arrives; it must not block."""

WORKSPACE = "/home/agent"
"""Path of the workspace inside every instance: the home and the first working directory."""

MIB = 1024 * 1024


class Outcome(StrEnum):
    """End of a run, as seen by the runtime. The program's own success is in `exit_code` or `error`."""

    OK = "ok"
    """It ran to its end, successfully or not."""
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
    """Limits of one instance. `None` means unlimited."""

    wall_seconds: float | None = 60.0
    """Time for one run or command, unless the call sets another."""
    cpu_seconds: float | None = None
    """CPU time of one run or command, including its children."""
    memory_bytes: int | None = 2048 * MIB
    """Memory of the whole instance, including its files (which are in memory), where cgroups are available; otherwise of each
    process.
    """
    processes: int | None = 256
    """Number of processes and threads of the whole instance."""
    file_bytes: int | None = 1024 * MIB
    """Size of one file."""
    disk_bytes: int = 1024 * MIB
    """Total size of the instance's files."""
    files: int = 200_000
    """Number of files of the instance."""
    output_bytes: int = 16 * MIB
    """stdout and stderr of one run together, in bytes."""
    open_files: int = 1024
    """Open file descriptors of one process."""


class HostRule(NamedTuple):
    """One entry of an allowlist of hosts."""

    host: str
    """A name or address; `*.name`: all names below it; `*`: every host."""
    ports: tuple[range, ...]
    """Allowed ports."""


_HOST_RULE = re.compile(
    r"(\[[0-9a-fA-F:.]+\]|\*|(?:\*\.)?[^\s/:*?#@\[\]%\\,]+)(?::(\*|\d{1,5}(?:-\d{1,5})?))?"
)


def parse_host_rule(text: str) -> HostRule:
    """Parse `example.org`, `*.example.com`, `example.com:8080`, `example.com:8000-8099` or `example.com:*`.

    Without a port, a rule allows 80 and 443.
    Example::

        assert parse_host_rule("example.org:443") == HostRule("example.org", (range(443, 444),))

    :raises ValueError: if it is not a rule.
    """
    match = _HOST_RULE.fullmatch(text)
    if match is None:
        raise ValueError(
            "not a host: write example.org, *.example.com, or example.org:8080 for another port than 80 and 443"
        )
    host, ports = match.groups()
    if ports is None:
        return HostRule(host, (range(80, 81), range(443, 444)))
    first, _, last = ("1-65535" if ports == "*" else ports).partition("-")
    allowed = range(int(first), int(last or first) + 1)
    if not allowed or allowed.start < 1 or allowed.stop > 65536:
        raise ValueError("not a port or range of ports from 1 to 65535")
    return HostRule(host, (allowed,))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAccess:
    """Network of an instance: a proxy for HTTP, HTTPS and SOCKS 5 that connects to the named hosts only.
    Example::
        spec = InstanceSpec(network=NetworkAccess(allow=("example.org", "*.example.com")))
    """

    allow: tuple[str, ...]
    """Hosts that may be reached: `name`, `*.name` (all names below it), an address or `*`; ports 80 and 443, or those given by
    `:port`, `:first-last` or `:*`.
    """
    allow_private: bool = False
    """These hosts may have private addresses and those of this machine, but not link-local ones (cloud metadata)."""
    max_bytes: int | None = 4096 * MIB
    """Traffic of the instance in both directions; a fork starts with its parent's."""
    max_connections: int = 32
    """Connections at a time."""

    def __post_init__(self) -> None:
        for number, text in enumerate(self.allow, 1):
            try:
                parse_host_rule(text)
            except ValueError as error:
                raise ValueError(f"entry {number} of allow is {error}") from None
        if self.max_connections < 1 or (self.max_bytes is not None and self.max_bytes < 1):
            raise ValueError("max_bytes and max_connections must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """Configuration of an instance.
    Example::
        spec = InstanceSpec(limits=Limits(wall_seconds=10), env={"LANG": "C.UTF-8"}, warm=frozenset({"python"}))
    """

    limits: Limits = Limits()
    """Resource limits."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables added to the small clean set of every instance. Nothing is inherited from the host."""
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Read-only directories: absolute path inside -> path on the host."""
    warm: frozenset[Language] = frozenset()
    """Sessions that are ready when `start` returns; others start at first use."""
    network: NetworkAccess | None = None
    """Hosts that programs inside may reach; by default none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a runtime on this machine."""

    fork: Literal["live", "replay", "none"]
    """`live`: a fork carries running state. `replay`: it carries files only, runs must be repeated. `none`: no forks."""
    snapshot: bool
    """Files can be saved and restored."""
    network: bool
    """Instances can have a network."""
    gpu: bool
    """Instances can have a GPU."""
    screen: bool
    """Instances have a screen."""
    root: bool
    """Commands can run as an unprivileged root inside."""
    notes: tuple[str, ...] = ()
    """One line for each missing protection or feature, and how to get it."""


@dataclass(frozen=True, slots=True)
class Display:
    """Rich output of a Python run: a plot, a table, HTML."""

    mime: str
    """MIME type: `image/png`, `application/vnd.agentflow.table+json`, `text/html`, …"""
    data: bytes
    """Content."""


@dataclass(frozen=True, slots=True)
class PythonError:
    """Exception that ended a Python run."""

    type: str
    """Class name."""
    message: str
    """`str()` of the exception."""
    traceback: str
    """Formatted traceback, without frames of the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of running source text in a live session."""

    outcome: Outcome
    """End of the run."""
    stdout: str = ""
    """Standard output, invalid UTF-8 replaced; on `output_limit` the part that fitted."""
    stderr: str = ""
    """Standard error."""
    exit_code: int | None = None
    """bash: exit status of the last command."""
    value: str | None = None
    """python: `repr` of the last expression, if it had a value other than `None`."""
    error: PythonError | None = None
    """python: the uncaught exception."""
    displays: tuple[Display, ...] = ()
    """python: plots, tables and other rich output, in order."""
    cwd: str = ""
    """The session's working directory afterwards."""
    state_lost: bool = False
    """The session's process ended or was killed: the next run starts a fresh one. Files are kept."""
    fresh: bool = False
    """With ``state_lost``: the process had ended since the last run, and this run started a fresh one."""
    detail: str = ""
    """One line on a non-ok outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """Result of a single command."""

    outcome: Outcome
    """End of the command."""
    exit_code: int
    """Exit status; 128 + n if signal n ended it."""
    stdout: bytes
    """Standard output."""
    stderr: bytes
    """Standard error."""
    detail: str = ""
    """One line on a non-ok outcome."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Entry of an instance's file system."""

    path: str
    """Absolute path inside."""
    kind: Literal["file", "directory", "symlink", "other"]
    """Type of the entry; symlinks are not followed."""
    size: int
    """Size in bytes."""
    mode: int
    """Permission bits."""
    modified: float
    """Seconds since the epoch."""
    target: str | None = None
    """Target of a symlink."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Current resource usage of an instance."""

    memory_bytes: int
    """Memory of all its processes in bytes."""
    processes: int
    """Number of processes, including the sessions."""
    cpu_seconds: float
    """CPU time of its living processes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of an instance at one instant, as the bytes of a tar archive."""

    archive: bytes
    """Tar archive; paths are absolute inside the instance."""


class Stream(Protocol):
    """Running command with live pipes. Leaving its context kills the command and its children."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    async def send(self, data: bytes) -> None:
        """Write to its standard input."""
        ...

    async def close_stdin(self) -> None:
        """Close its standard input."""
        ...

    def receive(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Iterate over its output as it arrives, until both pipes close."""
        ...

    async def wait(self) -> int:
        """Wait for its exit status; 128 + n if signal n ended it."""
        ...

    async def kill(self) -> None:
        """Kill it and its children."""
        ...


@dataclass(frozen=True, slots=True)
class Fork:
    """Result of a fork."""

    instance: "Instance"
    """Independent copy."""
    left_behind: tuple[str, ...] = ()
    """One line for each thing that was not copied: background jobs, threads, sockets, …"""


class Instance(Protocol):
    """Isolated environment. Every method raises `InstanceGone` after the end.

    Paths are resolved inside the instance by the kernel: relative ones start at the workspace; `..` and symlinks
    cannot leave it. File operations raise the matching `OSError` (`FileNotFoundError`, `PermissionError`, …).
    Example::
        result = await instance.run("python", "x = 41")
        result = await instance.run("python", "x + 1")
        assert result.value == "42"
    """

    @property
    def id(self) -> str:
        """Name, unique in its runtime."""
        ...

    @property
    def spec(self) -> InstanceSpec:
        """Spec that it was started with."""
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
        """Run source text in the live session of a language; start the session if there is none.

        Runs of one language are queued; the two languages are independent. With `stdin_open` (bash) the command
        reads the data of `send_input`; otherwise its standard input is empty. Cancellation kills the run.
        """
        ...

    async def send_input(self, language: Language, data: bytes) -> None:
        """Write to the standard input of the run in progress."""
        ...

    async def interrupt(self, language: Language) -> bool:
        """Interrupt the run in progress, as Ctrl-C would; return `False` if nothing runs."""
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
        """Run one command to its end. It and its children are gone afterwards."""
        ...

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Stream:
        """Start one command with live pipes."""
        ...

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the content of a regular file."""
        ...

    async def write(self, path: str, data: bytes, *, append: bool = False, executable: bool = False) -> None:
        """Write a regular file, creating its parents; replaced atomically unless `append`."""
        ...

    async def list(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """Return the entries of a directory, sorted by path; symlinks are not followed.

        :raises OSError: with EFBIG if there are more than 500,000, or their paths have more than 64 MiB.
        """
        ...

    async def stat(self, path: str) -> FileInfo:
        """Return one entry; a symlink at the end is not followed."""
        ...

    async def make_directory(self, path: str) -> None:
        """Create a directory with its parents; an existing one is fine."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or with `recursive` a directory tree."""
        ...

    async def move(self, source: str, destination: str, *, replace: bool = False) -> None:
        """Rename; raise `FileExistsError` if the destination exists, unless `replace`."""
        ...

    async def fork(self) -> Fork:
        """Return an independent live copy: files, interpreter, shell. Waits for running calls.

        :raises CannotFork: if the live state cannot be copied; the instance continues unharmed.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Save its files."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Restore its files from a snapshot. Live sessions end."""
        ...

    async def save(self, file: IO[bytes], *, max_bytes: int | None = None) -> None:
        """Write a snapshot to a file that is open for writing, without reading it into memory.

        :raises OSError: with EFBIG if it has more than `max_bytes`.
        """
        ...

    async def load(self, file: IO[bytes]) -> None:
        """Restore its files from a file that `save` has written. Live sessions end."""
        ...

    async def usage(self) -> ResourceUsage:
        """Return the current resource usage."""
        ...

    async def stop(self) -> None:
        """Kill every process and remove every file. Idempotent."""
        ...


class Runtime(Protocol):
    """Factory of instances. An async context manager: leaving it stops all of them.
    Example::
        async with ProcessRuntime() as runtime:
            instance = await runtime.start()
            result = await instance.exec(["echo", "hi"])
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities on this machine."""
        ...

    @property
    def alive(self) -> bool:
        """True if it can make instances: it is entered, and the programs it depends on are alive."""
        ...

    async def start(self, spec: InstanceSpec | None = None) -> Instance:
        """Start an instance.

        :raises IsolationUnavailable: if this machine lacks the isolation.
        """
        ...
