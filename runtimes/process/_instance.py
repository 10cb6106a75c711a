"""Instance of the process runtime: its sessions, commands, forks and files.

Files are read and written through descriptors that the sandbox init process opens.
"""

import asyncio
import contextlib
import errno
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import (
    WORKSPACE,
    ExecResult,
    FileInfo,
    Fork,
    InstanceSpec,
    Language,
    Outcome,
    OutputSink,
    ResourceUsage,
    RunResult,
    Snapshot,
)
from runtimes.process._channel import RequestChannel
from runtimes.process._command import CommandStream, RunningCommand
from runtimes.process._network import InstanceNetwork
from runtimes.process._sessions import PythonSession, ShellSession
from runtimes.process.linux import _cgroups, _processes
from runtimes.process.trusted._base import MATPLOTLIB_FOLDER
from runtimes.process.trusted._confine import LIBRARY_SETTINGS
from runtimes.process.trusted._wire import WireMessage

T = TypeVar("T")


class LimitCounts(NamedTuple):
    """CPU time, and number of times that limits were hit, since the start of an instance; 0 without cgroups."""

    memory: int
    """Processes killed because memory ran out."""
    processes: int
    """Processes that could not start because there were too many."""
    cpu: float | None
    """CPU seconds; `None` without cgroups."""


class LimitCounters:
    """Open counter files of an instance's cgroup."""

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = dict(files)

    def read(self) -> LimitCounts:
        """Return the current counts."""
        files = self._files
        try:
            return LimitCounts(
                _cgroups.counter(files.get("oom", -1), "oom_kill"),
                _cgroups.counter(files.get("pids", -1), "max"),
                _cgroups.cpu_seconds(files.get("cpu", -1)),
            )
        except OSError:
            # The cgroup is gone, and the instance with it: the next call reports that.
            return LimitCounts(0, 0, None)

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


_STOP_DEADLINE = 30.0
_LARGE = 1 << 20
"""Contents of at least this many bytes are read and written in a thread."""
_FULL = re.compile(r"\[Errno (27|28)\]|File too large|No space left on device")
_NO_PROCESS = re.compile(r"\[Errno 11\]|fork: |can't start new thread|Resource temporarily unavailable")
_NO_MEMORY = re.compile(r"MemoryError|Cannot allocate memory|\[Errno 12\]")


def new_name() -> str:
    """Return a random name for an instance."""
    return secrets.token_hex(8)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every process inside: a small fixed set, and the variables that the spec adds."""
    prefix = os.path.join(sys.prefix, "bin")
    return {
        "PATH": f"{WORKSPACE}/.local/bin:{prefix}:/usr/local/bin:/usr/bin:/bin",
        "HOME": WORKSPACE,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        **LIBRARY_SETTINGS,
        **extra,
    }


def _check_command(argv: Sequence[str], cwd: str | None, env: Mapping[str, str]) -> None:
    """Check arguments that no process could be started with.

    :raises ValueError: if the program is empty, or a text is not valid.
    """
    if not argv or not argv[0]:
        raise ValueError("a command needs a program: argv is empty")
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
    for text in (*argv, cwd or "", *env, *env.values()):
        try:
            usable = b"\0" not in os.fsencode(text)
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise ValueError(
                f"{text[:80]!r} can't be passed to a process: it contains NUL or invalid characters"
            )


class ProcessInstance:
    """Sandbox with a Python and a shell session. See `runtimes.Instance` and docs/process-runtime.md."""

    def __init__(
        self,
        client: RequestChannel,
        name: str,
        spec: InstanceSpec,
        instances: dict[str, "ProcessInstance"],
        env: Mapping[str, str] | None = None,
        network: InstanceNetwork | None = None,
    ) -> None:
        self._client = client
        self._id = name
        self._spec = spec
        self._gone = False
        self._instances = instances
        self._network = network or InstanceNetwork(None)
        variables = {"MPLCONFIGDIR": MATPLOTLIB_FOLDER, **self._network.environment(), **spec.env}
        self._env = environment(variables) if env is None else dict(env)
        self._python = PythonSession(client, name, spec.limits, self._env)
        self._shell = ShellSession(client, name, spec.limits, self._env)
        self._hits = LimitCounters({})
        self._stopped = asyncio.Event()

    @property
    def id(self) -> str:
        """Name that is unique in its runtime."""
        return self._id

    @property
    def spec(self) -> InstanceSpec:
        """Spec that it was started with."""
        return self._spec

    def _check(self) -> None:
        if self._gone:
            raise InstanceGone("the instance has ended")

    def _session(self, language: Language) -> PythonSession | ShellSession:
        return self._python if language == "python" else self._shell

    async def attach(self, reply: WireMessage) -> None:
        """Take over the counter files and the proxy's socket sent with a reply."""
        counters = reply.fields["counters"]
        self._hits = LimitCounters(dict(zip(counters, reply.fds, strict=False)))
        await self._network.serve(self._id, reply.fds[len(counters) :])

    async def warm(self, languages: frozenset[Language]) -> None:
        """Start sessions in advance."""
        for language in sorted(languages):
            await self._session(language).start()

    async def run(
        self,
        language: Language,
        source: str,
        *,
        timeout: float | None = None,
        on_output: OutputSink | None = None,
        stdin_open: bool = False,
    ) -> RunResult:
        """See `runtimes.Instance.run`."""
        self._check()
        wall = self._spec.limits.wall_seconds if timeout is None else timeout
        before = self._hits.read()
        result = await self._session(language).run(source, wall, on_output, stdin_open)
        if result.outcome in (Outcome.OK, Outcome.ENDED) and (
            result.exit_code or result.error is not None or result.outcome is Outcome.ENDED
        ):
            text = f"{result.error.type}: {result.error.message}" if result.error else result.stderr
            outcome, detail = self._limit_outcome(before, text, result.exit_code, result.outcome)
            if outcome is not result.outcome:
                await self._session(language).end_leftovers()
            result = replace(result, outcome=outcome, detail=detail or result.detail)
        return replace(result, detail=self._detail(result, wall, before))

    def _detail(self, result: RunResult | ExecResult, wall: float | None, before: LimitCounts) -> str:
        """Return the reason for a result's outcome.

        :param wall: time limit in seconds.
        :param before: counts at the start.
        """
        if result.outcome is Outcome.OK or result.detail:
            return result.detail
        if result.outcome is not Outcome.TIMEOUT or wall is None:
            return f"the run was ended: {result.outcome.value.replace('_', ' ')}"
        timeout, start, end = (
            f"the run was ended: timeout after {wall:g} s",
            before.cpu,
            self._hits.read().cpu,
        )
        if start is None or end is None:
            return timeout
        return f"{timeout}, with {end - start:.1f} s of CPU time for the sandbox"

    def _limit_outcome(
        self, before: LimitCounts, text: str, exit_code: int | None, outcome: Outcome
    ) -> tuple[Outcome, str]:
        """Return the outcome and detail of a failed run, which may have hit a limit."""
        now = self._hits.read()
        refused = now.processes > before.processes
        limits = self._spec.limits
        if now.memory > before.memory or (not self._client.facts["grouped"] and _NO_MEMORY.search(text)):
            return Outcome.OUT_OF_MEMORY, f"the memory limit of {limits.memory_bytes} bytes was hit"
        if exit_code == 153 or _FULL.search(text):
            return Outcome.FILE_TOO_LARGE, (
                f"a file exceeded {limits.file_bytes} bytes, or all files together {limits.disk_bytes}"
            )
        if _NO_PROCESS.search(text) and (refused or not self._client.facts["grouped"] or exit_code != 0):
            return Outcome.TOO_MANY_PROCESSES, f"the limit of {limits.processes} processes was hit"
        return outcome, ""

    async def send_input(self, language: Language, data: bytes) -> None:
        """See `runtimes.Instance.send_input`.

        :raises RuntimeFailure: if no run takes input.
        """
        self._check()
        if language != "bash" or not self._shell.takes_input:
            raise RuntimeFailure(f"no {language} run takes input")
        try:
            self._shell.send_input(data)
        except BlockingIOError:
            raise RuntimeFailure("the running command does not read its input") from None
        except OSError as error:
            raise RuntimeFailure(f"the running command takes no input: {error.strerror}") from None

    async def interrupt(self, language: Language) -> bool:
        """See `runtimes.Instance.interrupt`."""
        self._check()
        return await self._session(language).interrupt()

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
        """See `runtimes.Instance.exec`."""
        command = await self._command(argv, cwd, env, user)
        wall = self._spec.limits.wall_seconds if timeout is None else timeout
        before = self._hits.read()
        result = await command.run(input, wall, on_output)
        if result.outcome is Outcome.OK and result.exit_code:
            text = result.stderr.decode("utf-8", "replace")
            outcome, detail = self._limit_outcome(before, text, result.exit_code, result.outcome)
            result = replace(result, outcome=outcome, detail=detail)
        return replace(result, detail=self._detail(result, wall, before))

    async def _command(
        self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None, user: str | None
    ) -> RunningCommand:
        self._check()
        _check_command(argv, cwd, env or {})
        command = RunningCommand(self._client, self._id, self._spec.limits)
        folder = None if cwd is None and user is not None else os.path.join(WORKSPACE, cwd or "")
        await command.start(argv, folder, {**self._env, **(env or {})}, user)
        return command

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> CommandStream:
        """See `runtimes.Instance.open_stream`."""
        return CommandStream(await self._command(argv, cwd, env, None))

    async def fork(self) -> Fork:
        """See `runtimes.Instance.fork`."""
        self._check()
        async with self._python.lock, self._shell.lock:
            self._check()
            return await self._fork()

    async def _fork(self) -> Fork:
        network = self._network.fork()
        child = ProcessInstance(self._client, new_name(), self._spec, self._instances, network=network)
        try:
            reply = await self._client.ask(
                "copy", sandbox=self._id, id=child.id, mounts=dict(self._spec.mounts)
            )
        except (OSError, RuntimeFailure) as error:
            if isinstance(error, InstanceGone):
                raise
            raise CannotFork(str(error)) from error
        left: list[str] = []
        try:
            await child.attach(reply)
            if self._python.alive:
                child._python, lines = await self._python.fork_into(child.id, reply.fields["uid"])
                left += lines
            else:
                child._python.inherit_loss(self._python)
            left += await self._copy_shell_to(child)
        except BaseException as error:
            await self._abandon(child, error)
            raise
        self._instances[child.id] = child
        return Fork(child, tuple(left))

    async def _abandon(self, child: "ProcessInstance", error: BaseException) -> None:
        """End the child of a failed fork.

        :raises CannotFork: if the error means that the instance can't be forked.
        """
        with anyio.CancelScope(shield=True):
            await child.stop()
        if isinstance(error, OSError | RuntimeFailure) and not isinstance(error, CannotFork | InstanceGone):
            raise CannotFork(str(error)) from error

    async def _copy_shell_to(self, child: "ProcessInstance") -> list[str]:
        """Copy the shell's state to a fork; return one line for each thing left behind, including processes."""
        left: list[str] = []
        if self._shell.alive:
            state, lines = await self._shell.dump()
            async with child._shell.lock:
                await child._shell.restore(state)
            left += [f"the shell's {line}" for line in lines]
        else:
            child._shell.inherit_loss(self._shell)
        names = (await self._client.ask("events", sandbox=self._id)).fields["others"]
        return left + [f"the background process {name}" for name in names]

    async def _file(
        self,
        action: str,
        path: str,
        details: Mapping[str, object] | None = None,
        *,
        op: str = "file",
        fds: Sequence[int] = (),
    ) -> WireMessage:
        self._check()
        request = {**(details or {}), "action": action, "path": path}
        return await self._client.ask(op, fds, sandbox=self._id, request=request)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `runtimes.Instance.read`."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError("offset and length can't be negative")
        fd = (await self._file("open", path)).fds[0]
        try:
            size = max(0, os.fstat(fd).st_size - offset)
            size = size if length is None else min(size, length)
            return await _off_loop(lambda: _read(fd, offset, size), size)
        finally:
            os.close(fd)

    async def write(self, path: str, data: bytes, *, append: bool = False, executable: bool = False) -> None:
        """See `runtimes.Instance.write`."""
        view, limit = memoryview(data), self._spec.limits.file_bytes
        details = {"append": append, "executable": executable, "token": secrets.token_hex(8)}
        reply = await self._file("create", path, details)
        fd, target = reply.fds[0], reply.fields.get("target", path)
        done = append
        try:
            if limit is not None and os.fstat(fd).st_size + len(view) > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            await _off_loop(lambda: _write(fd, view, path), len(view))
            if not append:
                await self._file("commit", target, {"temporary": reply.fields["temporary"]})
            done = True
        finally:
            os.close(fd)
            if not done:
                abandoned = {"temporary": reply.fields["temporary"], "abandon": True}
                with anyio.CancelScope(shield=True), contextlib.suppress(OSError, RuntimeFailure):
                    await self._file("commit", target, abandoned)

    async def list(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """See `runtimes.Instance.list`."""
        fd = os.memfd_create("entries")
        try:
            await self._file("list", path, {"recursive": recursive}, op="list", fds=[fd])
            return await _off_loop(lambda: _entries(fd), os.fstat(fd).st_size)
        finally:
            os.close(fd)

    async def stat(self, path: str) -> FileInfo:
        """See `runtimes.Instance.stat`."""
        return FileInfo(*(await self._file("stat", path)).fields["info"])

    async def make_directory(self, path: str) -> None:
        """See `runtimes.Instance.make_directory`."""
        await self._file("mkdir", path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `runtimes.Instance.remove`."""
        await self._file("remove", path, op="remove" if recursive else "file")

    async def move(self, source: str, destination: str, *, replace: bool = False) -> None:
        """See `runtimes.Instance.move`."""
        await self._file("move", source, {"destination": destination, "replace": replace})

    async def snapshot(self) -> Snapshot:
        """See `runtimes.Instance.snapshot`."""
        fd = os.memfd_create("snapshot")
        try:
            await self._pack(fd, None)
            return Snapshot(await _read_all(fd))
        finally:
            os.close(fd)

    async def save(self, file: IO[bytes], *, max_bytes: int | None = None) -> None:
        """See `runtimes.Instance.save`."""
        await self._pack(file.fileno(), max_bytes)

    async def _pack(self, fd: int, most: int | None) -> None:
        self._check()
        await self._client.ask("pack", [fd], sandbox=self._id, most=most)

    async def restore(self, snapshot: Snapshot) -> None:
        """See `runtimes.Instance.restore`.

        :raises ValueError: if it is not a valid snapshot; nothing is changed then.
        """
        fd = os.memfd_create("snapshot")
        try:
            await _write_all(fd, snapshot.archive)
            await self._unpack(fd)
        finally:
            os.close(fd)

    async def load(self, file: IO[bytes]) -> None:
        """See `runtimes.Instance.load`.

        :raises ValueError: if it is not a valid snapshot; nothing is changed then.
        """
        await self._unpack(file.fileno())

    async def _unpack(self, fd: int) -> None:
        self._check()
        async with self._python.lock, self._shell.lock:
            try:
                await self._client.ask("check_archive", [fd], sandbox=self._id)
                await self._python.end()
                await self._shell.end()
                await self._client.ask(
                    "kill_run", sandbox=self._id, pid=0, since=0.0, now=_processes.uptime()
                )
                reply = await self._client.ask(
                    "unpack", [fd], sandbox=self._id, mounts=dict(self._spec.mounts)
                )
                await self._network.serve(self._id, reply.fds)
            except RuntimeFailure as error:
                raise ValueError(str(error)) from None

    async def usage(self) -> ResourceUsage:
        """See `runtimes.Instance.usage`."""
        self._check()
        events = (await self._client.ask("events", sandbox=self._id)).fields
        return ResourceUsage(events["memory"], events["processes"], events["cpu"])

    async def stop(self) -> None:
        """See `runtimes.Instance.stop`."""
        if self._gone:
            await self._stopped.wait()
            return
        self._gone = True
        with anyio.move_on_after(_STOP_DEADLINE, shield=True):
            await self._end()
        self._python.close()
        self._shell.close()
        self._hits.close()
        self._network.close()
        self._instances.pop(self._id, None)
        self._stopped.set()

    async def _end(self) -> None:
        """Kill its processes and delete its files."""
        with contextlib.suppress(RuntimeFailure):
            await self._client.ask("stop", sandbox=self._id)


async def _off_loop(work: Callable[[], T], size: int) -> T:
    return work() if size < _LARGE else await anyio.to_thread.run_sync(work)


async def _read_all(fd: int) -> bytes:
    """Return the content of a file, outside the event loop if it is large."""
    size = os.fstat(fd).st_size
    return await _off_loop(lambda: _read(fd, 0, size), size)


async def _write_all(fd: int, data: bytes) -> None:
    """Write data to a file, outside the event loop if it is large."""
    await _off_loop(lambda: _write(fd, memoryview(data), "snapshot"), len(data))


def _read(fd: int, offset: int, length: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(offset)
        return file.read(length)


def _write(fd: int, view: memoryview, path: str) -> None:
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _entries(fd: int) -> list[FileInfo]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        return sorted((FileInfo(*json.loads(line)) for line in file), key=lambda info: info.path)
