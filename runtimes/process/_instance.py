"""Instance of the process runtime."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, NamedTuple

import anyio

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import (
    WORKSPACE,
    ExecResult,
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
from runtimes.process._workspace import WorkspaceFiles, new_name, read_content, write_content
from runtimes.process.linux import _cgroups, _processes
from runtimes.process.trusted._base import MATPLOTLIB_FOLDER
from runtimes.process.trusted._confine import LIBRARY_SETTINGS
from runtimes.process.trusted._wire import WireMessage


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
_FULL = re.compile(r"\[Errno (27|28)\]|File too large|No space left on device")
_NO_PROCESS = re.compile(r"\[Errno 11\]|fork: |can't start new thread|Resource temporarily unavailable")
_NO_MEMORY = re.compile(r"MemoryError|Cannot allocate memory|\[Errno 12\]")


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


class ProcessInstance(WorkspaceFiles):
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
        super().__init__(client, name, spec)
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

    async def snapshot(self) -> Snapshot:
        """See `runtimes.Instance.snapshot`."""
        fd = os.memfd_create("snapshot")
        try:
            await self._pack(fd, None)
            return Snapshot(await read_content(fd))
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
            await write_content(fd, snapshot.archive)
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
