"""Instance that is a remote sandbox."""

import base64
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from io import BytesIO
from typing import IO, Literal, Self, TypeVar

import anyio
import anyio.to_thread
import msgspec

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes._protocol import (
    ExecResult,
    FileInfo,
    Fork,
    InstanceSpec,
    Language,
    OutputSink,
    ResourceUsage,
    RunResult,
    Snapshot,
)
from runtimes.remote._calls import RemoteCall, RemoteOutput, SandboxCalls, result_of, stream_name

T = TypeVar("T")

_PART_BYTES = 8 << 20
_STOP_SECONDS = 30.0
_SPARE_SECONDS = 300.0
"""Time that the server inside has for a call, beyond that of its program."""

Forker = Callable[["RemoteInstance"], Awaitable[Fork]]
"""Function that copies an instance. Its sessions are idle."""


class PackedFiles(msgspec.Struct, frozen=True):
    """Snapshot in the spool of a sandbox."""

    name: str
    """Name of the file."""
    size: int
    """Size in bytes."""


class ShellDump(msgspec.Struct, frozen=True):
    """State of a shell session for a fork by copying."""

    state: bytes | None
    """Shell code; `None` without a session."""
    left: list[str]
    """One line for each thing left behind."""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


class RemoteStream:
    """Command with live pipes in a remote sandbox. See `runtimes.Stream`."""

    def __init__(self, calls: SandboxCalls, stack: AsyncExitStack, call: RemoteCall) -> None:
        self._calls = calls
        self._stack = stack
        self._call = call
        self._events = call.events()
        self._killed = False
        self._status: int | None = None

    async def begin(self) -> None:
        """Wait until it has started."""
        async for event in self._events:
            if not isinstance(event, RemoteOutput):
                self._status = result_of(event, int)
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()

    async def send(self, data: bytes) -> None:
        """See `runtimes.Stream.send`."""
        await self._calls.call("stream_send", type(None), stream=self._call.id, data=_text(data))

    async def close_stdin(self) -> None:
        """See `runtimes.Stream.close_stdin`."""
        await self._calls.call("stream_close", type(None), stream=self._call.id)

    async def receive(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """See `runtimes.Stream.receive`."""
        async for event in self._events:
            if not isinstance(event, RemoteOutput):
                self._status = result_of(event, int)
                return
            if event.name == "closed":
                return
            name = stream_name(event.name)
            if name is not None:
                yield name, event.data

    async def wait(self) -> int:
        """See `runtimes.Stream.wait`."""
        while self._status is None and not self._killed:
            async for _ in self.receive():
                pass
        return -9 if self._status is None else self._status

    async def kill(self) -> None:
        """See `runtimes.Stream.kill`."""
        if not self._killed:
            self._killed = True
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
                await self._calls.end_now(self._call.id)


class RemoteInstance:
    """Sandbox of a service. See `runtimes.Instance` and docs/remote-runtimes.md."""

    def __init__(
        self,
        calls: SandboxCalls,
        spec: InstanceSpec,
        instances: dict[str, "RemoteInstance"],
        fork: Forker,
    ) -> None:
        self.calls = calls
        """Calls to its server."""
        self._spec = spec
        self._instances = instances
        self._fork = fork
        self._gone = False
        self._turns: Mapping[Language, anyio.Lock] = {"python": anyio.Lock(), "bash": anyio.Lock()}
        instances[self.id] = self

    @property
    def id(self) -> str:
        """Id that the service gave the sandbox."""
        return self.calls.sandbox.id

    @property
    def spec(self) -> InstanceSpec:
        """Spec that it was started with."""
        return self._spec

    def _check(self) -> None:
        if self._gone:
            raise InstanceGone("the instance was stopped")

    async def _ask(self, method: str, **arguments: object) -> None:
        await self._get(method, type(None), None, **arguments)

    async def _get(
        self,
        method: str,
        kind: type[T],
        on_output: OutputSink | None = None,
        program_seconds: float | None = 0.0,
        /,
        **arguments: object,
    ) -> T:
        """Call a method; the server inside is untrusted, and may never end the call.

        :param program_seconds: time limit of the call's program; `None`: it may run for ever.
        """
        self._check()
        seconds = None if program_seconds is None else program_seconds + _SPARE_SECONDS
        try:
            with anyio.move_on_after(seconds):
                return await self.calls.call(method, kind, on_output=on_output, **arguments)
            raise RuntimeFailure(f"the sandbox's server did not end a call within {seconds:g} seconds")
        except RuntimeFailure as error:
            if self._gone and not isinstance(error, InstanceGone):
                raise InstanceGone("the instance was stopped") from None
            raise

    def _seconds(self, timeout: float | None) -> float | None:
        return self._spec.limits.wall_seconds if timeout is None else timeout

    async def warm(self, languages: frozenset[Language]) -> None:
        """Start sessions in advance."""
        if languages:
            await self._ask("warm", languages=sorted(languages))

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
        async with self._turns[language]:
            return await self._get(
                "run",
                RunResult,
                on_output,
                self._seconds(timeout),
                live=on_output is not None,
                language=language,
                source=source,
                timeout=timeout,
                stdin_open=stdin_open,
            )

    async def send_input(self, language: Language, data: bytes) -> None:
        """See `runtimes.Instance.send_input`."""
        await self._ask("send_input", language=language, data=_text(data))

    async def interrupt(self, language: Language) -> bool:
        """See `runtimes.Instance.interrupt`."""
        return await self._get("interrupt", bool, language=language)

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
        return await self._get(
            "exec",
            ExecResult,
            on_output,
            self._seconds(timeout),
            live=on_output is not None,
            argv=list(argv),
            input=_text(input),
            cwd=cwd,
            env=dict(env or {}),
            user=user,
            timeout=timeout,
        )

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> RemoteStream:
        """See `runtimes.Instance.open_stream`."""
        self._check()
        stack = AsyncExitStack()
        call = await stack.enter_async_context(
            self.calls.open("stream", argv=list(argv), cwd=cwd, env=dict(env or {}))
        )
        stream = RemoteStream(self.calls, stack, call)
        try:
            await stream.begin()
        except BaseException:
            await stream.kill()
            raise
        return stream

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `runtimes.Instance.read`."""
        return await self._get("read", bytes, path=path, offset=offset, length=length)

    async def write(self, path: str, data: bytes, *, append: bool = False, executable: bool = False) -> None:
        """See `runtimes.Instance.write`."""
        await self._ask("write", path=path, data=_text(data), append=append, executable=executable)

    async def list(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """See `runtimes.Instance.list`."""
        return await self._get("list", list[FileInfo], path=path, recursive=recursive)

    async def stat(self, path: str) -> FileInfo:
        """See `runtimes.Instance.stat`."""
        return await self._get("stat", FileInfo, path=path)

    async def make_directory(self, path: str) -> None:
        """See `runtimes.Instance.make_directory`."""
        await self._ask("make_directory", path=path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `runtimes.Instance.remove`."""
        await self._ask("remove", path=path, recursive=recursive)

    async def move(self, source: str, destination: str, *, replace: bool = False) -> None:
        """See `runtimes.Instance.move`."""
        await self._ask("move", source=source, destination=destination, replace=replace)

    async def fork(self) -> Fork:
        """See `runtimes.Instance.fork`."""
        self._check()
        async with self._turns["python"], self._turns["bash"]:
            self._check()
            return await self._fork(self)

    async def dump_shell(self) -> ShellDump:
        """Return the shell's state.

        :raises CannotFork: if there is a live interpreter.
        """
        return await self._get("dump_shell", ShellDump)

    async def restore_shell(self, state: bytes) -> None:
        """Restore another shell's state."""
        await self._ask("restore_shell", state=_text(state))

    async def snapshot(self) -> Snapshot:
        """See `runtimes.Instance.snapshot`."""
        file = BytesIO()
        await self.save(file, max_bytes=self._spec.limits.disk_bytes)
        return Snapshot(file.getvalue())

    async def save(self, file: IO[bytes], *, max_bytes: int | None = None) -> None:
        """See `runtimes.Instance.save`."""
        packed: PackedFiles = await self._get("pack", PackedFiles, most=max_bytes)
        offset = 0
        while offset < packed.size:
            part: bytes = await self._get("part", bytes, name=packed.name, offset=offset, length=_PART_BYTES)
            offset += len(part)
            if not part or (max_bytes is not None and offset > max_bytes):
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            await anyio.to_thread.run_sync(file.write, part)
        await anyio.to_thread.run_sync(file.flush)
        await self._ask("drop", name=packed.name)

    async def restore(self, snapshot: Snapshot) -> None:
        """See `runtimes.Instance.restore`."""
        await self.load(BytesIO(snapshot.archive))

    async def load(self, file: IO[bytes]) -> None:
        """See `runtimes.Instance.load`."""
        self._check()
        name = os.urandom(8).hex()
        file.seek(0)
        offset = 0
        while True:
            part = await anyio.to_thread.run_sync(file.read, _PART_BYTES)
            if offset and not part:
                break
            await self._ask("add", name=name, offset=offset, data=_text(part))
            if not part:
                break
            offset += len(part)
        try:
            async with self._turns["python"], self._turns["bash"]:
                await self._ask("unpack", name=name)
        finally:
            await self._ask("drop", name=name)

    async def usage(self) -> ResourceUsage:
        """See `runtimes.Instance.usage`."""
        return await self._get("usage", ResourceUsage)

    async def stop(self) -> None:
        """See `runtimes.Instance.stop`."""
        if self._gone:
            return
        self._gone = True
        self._instances.pop(self.id, None)
        with anyio.move_on_after(_STOP_SECONDS, shield=True):
            await self.calls.sandbox.end()
