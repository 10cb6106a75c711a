"""A child process with live pipes that ends with this process in all cases."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import Literal, Protocol, Self, TypeAlias

import anyio

from agentflow.actors import SYSTEM_CLOCK, ActorError, Context, Process, ProcessEnded

Piece: TypeAlias = tuple[Literal["stdout", "stderr"], bytes]
"""A chunk of output and its stream."""

CHUNK = 65_536
GRACE_SECONDS = 2.0
"""Time for a command to end after its input is closed and it is asked to."""


class Pipes(Protocol):
    """The interface of a running command; `runtimes.Stream` has it too."""

    async def send(self, data: bytes) -> None:
        """Write to standard input."""
        ...

    def receive(self) -> AsyncIterator[Piece]:
        """Yield output as it arrives, until both pipes close."""
        ...

    async def wait(self) -> int:
        """Return the exit status."""
        ...


class _CommandPipes:
    """Our ends of a command's pipes. Nothing here blocks the event loop."""

    def __init__(self, stdin: FileIO, stdout: FileIO, stderr: FileIO) -> None:
        self._stdin = stdin
        self._outputs: list[tuple[FileIO, Literal["stdout", "stderr"]]] = [
            (stdout, "stdout"),
            (stderr, "stderr"),
        ]
        self._sender, self._receiver = anyio.create_memory_object_stream[Piece](0)
        self.started = anyio.Event()
        self.ended = anyio.Event()
        self.status = 0
        self.failure: ActorError | None = None
        for file in (stdin, stdout, stderr):
            os.set_blocking(file.fileno(), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sender.close()
        self._receiver.close()

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._stdin.fileno(), left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._stdin)
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    async def receive(self) -> AsyncGenerator[Piece]:
        async for piece in self._receiver:
            yield piece

    async def wait(self) -> int:
        await self.ended.wait()
        return self.status

    async def run(self, process: Process, context: Context) -> None:
        """Run the process to its end."""
        try:
            await process.run(context)
        except ProcessEnded as error:
            self.status = error.status
        except ActorError as error:
            self.failure = error
        finally:
            self.started.set()
            self.ended.set()

    async def read(self) -> None:
        """Read both outputs independently until they end."""
        async with self._sender, anyio.create_task_group() as group:
            for file, name in self._outputs:
                group.start_soon(self._read, file, name)

    async def _read(self, file: FileIO, name: Literal["stdout", "stderr"]) -> None:
        while True:
            await anyio.wait_readable(file)
            data = os.read(file.fileno(), CHUNK)
            if not data:
                return
            try:
                await self._sender.send((name, data))
            except anyio.BrokenResourceError:
                continue  # nobody listens any more, but a full pipe must not keep the process from ending

    async def end(self, context: Context) -> None:
        """Close its input and ask it to end; if it does not, cancelling `run` kills it."""
        self._stdin.close()
        self._receiver.close()
        if context.stop_callback is not None:
            context.stop_callback()
        with anyio.move_on_after(GRACE_SECONDS):
            await self.ended.wait()


@asynccontextmanager
async def command_pipes(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None
) -> AsyncGenerator[Pipes]:
    """Run a command with pipes; on exit the command and all its descendants are gone.

    :raises ActorError: if it cannot be run.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        (stdin, giving), (taking, stdout), (hearing, stderr) = _pipe(), _pipe(), _pipe()
        for file in (giving, taking, hearing):
            ours.enter_context(file)
        for file in (stdin, stdout, stderr):
            theirs.enter_context(file)
        pipes = ours.enter_context(_CommandPipes(giving, taking, hearing))
        process = Process(command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
        context = Context(command[0], SYSTEM_CLOCK, pipes.started.set)
        async with anyio.create_task_group() as group:
            group.start_soon(pipes.run, process, context)
            await pipes.started.wait()
            theirs.close()
            if pipes.failure is None:
                group.start_soon(pipes.read)
                try:
                    yield pipes
                finally:
                    with anyio.CancelScope(shield=True):
                        await pipes.end(context)
                    group.cancel_scope.cancel()
        if pipes.failure is not None:
            raise pipes.failure


def _pipe() -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return FileIO(reading, "r"), FileIO(writing, "w")
