"""Python session and shell session, seen from the server. Everything received from them is untrusted."""

import array
import asyncio
import fcntl
import os
import re
import signal
import socket
import termios
from collections.abc import Mapping
from itertools import islice

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import Display, Limits, Outcome, PythonError, RunResult
from runtimes.process._channel import RequestChannel, socket_pair
from runtimes.process._command import make_pipes
from runtimes.process._control_socket import (
    MAX_TEXT_BYTES,
    PythonControlSocket,
    PythonReply,
    ShellControlSocket,
    ShellReply,
)
from runtimes.process._live_session import START_DEADLINE, LiveSession

# As long as that of a start: on a busy machine a sandbox waits for its share of the CPU.
_MOVE_DEADLINE = 60.0
_DUMP_DEADLINE = 60.0
_LEFT = re.compile(rb"\n# left: ([^\n]*)")
_MAX_LEFT = 1000


class PythonSession(LiveSession[PythonReply]):
    """Session with a live interpreter."""

    language = "python"

    _ready: asyncio.Future[PythonReply | None]

    def _connect(self, sock: socket.socket) -> PythonControlSocket:
        control = PythonControlSocket(sock)
        self._ready = control.ready
        return control

    async def _launch(self) -> None:
        await self._start_process("python")
        await self.wait_ready()

    async def wait_ready(self) -> PythonReply:
        """Wait for the first reply of a new session.

        :raises RuntimeFailure: if the session ends instead.
        """
        try:
            return await self.answer_to(self._ready, START_DEADLINE)
        except CannotFork:
            detail = ""
            if self._pipes is not None:
                self._pipes.drain()
                detail = self._pipes.take()[1].decode("utf-8", "replace").strip()
            await self.end()
            raise RuntimeFailure(f"the python session did not start: {detail[-500:]}") from None

    def _ask(self, source: str, *, stdin_open: bool) -> asyncio.Future[PythonReply | None]:
        assert isinstance(self._control, PythonControlSocket)
        return self._control.request("run", source=source)

    async def _interrupt_run(self) -> None:
        await self._signal(signal.SIGINT)

    def _result(self, answer: PythonReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        return python_result(answer, outcome, stdout, stderr)

    async def fork_into(self, sandbox: str, uid: int) -> tuple["PythonSession", list[str]]:
        """Copy the live interpreter into another sandbox. The caller holds the lock.

        :raises CannotFork: if it can't be copied; this session keeps running.
        """
        ours, theirs = socket_pair()
        pipes, ends = make_pipes(self._limits.output_bytes)
        control = PythonControlSocket(ours)
        child = PythonSession(self._client, sandbox, self._limits, self._env)
        child._adopt(0, control, pipes)
        try:
            moved = self._client.expect_move(sandbox)
            await self._client.ask(
                "move_python", [theirs.fileno(), *ends], sandbox=self._sandbox_id, to=sandbox
            )
            # It may have ended since `alive` was checked.
            if not isinstance(self._control, PythonControlSocket):
                raise CannotFork("the python session does not respond")
            answer = await self.answer_to(self._control.request("fork", uid=uid), _MOVE_DEADLINE)
            if "error" in answer.fields:
                raise CannotFork(str(answer.fields["error"]))
            theirs.close()
            await child._arrive(moved)
            left = _texts(await child.answer_to(control.ready, _MOVE_DEADLINE), "left_behind")
        except BaseException:
            child.close()
            raise
        finally:
            theirs.close()
            for fd in ends:
                os.close(fd)
        return child, left

    async def _arrive(self, moved: asyncio.Future[int]) -> None:
        try:
            async with asyncio.timeout(_MOVE_DEADLINE):
                self._pid = await moved
        except TimeoutError:
            raise CannotFork("the interpreter's copy hung during its move") from None
        except InstanceGone:
            raise
        except RuntimeFailure as error:
            raise CannotFork(str(error)) from None


def python_result(answer: PythonReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
    """Return the result of a run from an untrusted reply.

    :raises ValueError: if it is malformed; also KeyError, TypeError and AttributeError.
    """
    fields, parts = answer.fields, _Parts(answer.data)
    value = None if fields["value"] is None else parts.text(fields["value"])
    error = None if fields["error"] is None else PythonError(*map(parts.text, fields["error"]))
    displays = tuple(Display(_text(mime), parts.take(size)) for mime, size in fields["displays"])
    parts.end()
    return RunResult(
        outcome=outcome,
        stdout=stdout,
        stderr=stderr,
        value=value,
        error=error,
        displays=displays,
        cwd=_text(fields["cwd"]),
    )


class _Parts:
    """Parts of a reply's data, taken in order. Sizes come from inside.

    :raises ValueError: if the sizes do not add up to the data.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size: object) -> bytes:
        """Return the next part."""
        if not isinstance(size, int) or not 0 <= size <= len(self._data):
            raise ValueError("a size is wrong")
        part, self._data = bytes(self._data[:size]), self._data[size:]
        return part

    def text(self, size: object) -> str:
        """Return the next part as text."""
        part = self.take(size)
        if len(part) > MAX_TEXT_BYTES:
            raise ValueError("a text is too long")
        return part.decode("utf-8", "replace")

    def end(self) -> None:
        """Check that no data is left."""
        if self._data:
            raise ValueError("there is more data than expected")


def _texts(reply: PythonReply, name: str) -> list[str]:
    """Return the texts of a reply that consists of texts.

    :raises CannotFork: if it is malformed.
    """
    parts = _Parts(reply.data)
    try:
        return [parts.text(size) for size in reply.fields[name]]
    except (KeyError, TypeError, ValueError):
        raise CannotFork("the interpreter's copy sent a malformed reply") from None


def _text(value: object) -> str:
    """Return text from inside without lone surrogates.

    :raises TypeError: if it is not text.
    """
    if not isinstance(value, str):
        raise TypeError("not text")
    return value.encode("utf-8", "replace").decode()


class ShellSession(LiveSession[ShellReply]):
    """Session with a live bash."""

    language = "bash"

    def __init__(self, client: RequestChannel, sandbox: str, limits: Limits, env: Mapping[str, str]) -> None:
        super().__init__(client, sandbox, limits, env)
        self._stdin = -1
        self._stdin_reader = -1
        self._stdin_open = False

    @property
    def takes_input(self) -> bool:
        """The run in progress has an open standard input."""
        return self._stdin_open and self._call is not None

    def _connect(self, sock: socket.socket) -> ShellControlSocket:
        return ShellControlSocket(sock)

    async def _launch(self) -> None:
        stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(stdin_write, False)
        try:
            await self._start_process("shell", [stdin_read])
        except BaseException:
            os.close(stdin_write)
            os.close(stdin_read)
            raise
        self._stdin, self._stdin_reader = stdin_write, stdin_read

    def _ask(self, source: str, *, stdin_open: bool) -> asyncio.Future[ShellReply | None]:
        assert isinstance(self._control, ShellControlSocket)
        self._discard_input()
        self._stdin_open = stdin_open
        text = source.encode("utf-8", "surrogateescape")
        return self._control.request("ask" if stdin_open else "run", text)

    def _discard_input(self) -> None:
        """Discard input that an earlier run was sent and did not read."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._stdin_reader, termios.FIONREAD, waiting)
        if waiting[0]:
            os.read(self._stdin_reader, waiting[0])

    async def _interrupt_run(self) -> None:
        await self._signal(signal.SIGRTMAX)

    def _result(self, answer: ShellReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        status, cwd = answer
        return RunResult(
            outcome=outcome,
            stdout=stdout,
            stderr=stderr,
            exit_code=int(status),
            cwd=cwd.decode("utf-8", "replace"),
        )

    def send_input(self, data: bytes) -> None:
        """Write to the running command's standard input.

        :raises BlockingIOError: if the pipe is full.
        :raises BrokenPipeError: if no process reads from it.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self._stdin, view) :]

    async def dump(self) -> tuple[bytes, list[str]]:
        """Return the session's state as shell code, and one line for each thing left behind. The caller holds the lock.

        :raises CannotFork: if the session does not respond.
        """
        assert isinstance(self._control, ShellControlSocket)
        state, *_ = await self.answer_to(self._control.request("dump", b""), _DUMP_DEADLINE)
        left = islice(_LEFT.finditer(state), _MAX_LEFT)
        return state, [line[1].decode("utf-8", "replace") for line in left]

    async def restore(self, state: bytes) -> None:
        """Restore another session's state. The caller holds the lock.

        :raises CannotFork: if the session does not respond.
        """
        await self._ensure()
        assert isinstance(self._control, ShellControlSocket)
        await self.answer_to(self._control.request("restore", state), _DUMP_DEADLINE)
        if self._pipes is not None:
            self._pipes.drain()
            self._pipes.take()

    def close(self) -> None:
        """Close all descriptors; the process has ended."""
        super().close()
        if self._stdin >= 0:
            os.close(self._stdin)
            os.close(self._stdin_reader)
            self._stdin = self._stdin_reader = -1
