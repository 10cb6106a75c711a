"""Shell session, seen from the server."""

import array
import fcntl
import os
import signal
import termios
from collections.abc import Mapping

from runtimes._protocol import Limits, Outcome, RunResult
from runtimes.process._channel import RequestChannel, socket_pair
from runtimes.process._control_socket import ShellControlSocket, ShellReply
from runtimes.process._live_session import LiveSession, make_pipes
from runtimes.process.trusted import _wire

_DUMP_DEADLINE = 20.0
_LEFT = "# left: "


class ShellSession(LiveSession[ShellReply]):
    """Session with a live bash."""

    language = "bash"

    def __init__(self, client: RequestChannel, sandbox: str, limits: Limits, env: Mapping[str, str]) -> None:
        super().__init__(client, sandbox, limits)
        self._env = env
        self._stdin = -1
        self._stdin_reader = -1
        self._stdin_open = False

    @property
    def takes_input(self) -> bool:
        """The run in progress has an open standard input."""
        return self._stdin_open and self._call is not None

    async def _launch(self) -> None:
        ours, theirs = socket_pair()
        pipes, ends = make_pipes(self._limits.output_bytes)
        stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        control = ShellControlSocket(ours)
        ends.append(_wire.payload({"env": dict(self._env)}))
        try:
            reply = await self._client.ask(
                "shell",
                [theirs.fileno(), stdin_read, *ends],
                on_exit=self._exit_reporter(),
                sandbox=self._sandbox_id,
            )
        except BaseException:
            control.close()
            pipes.close()
            os.close(stdin_write)
            os.close(stdin_read)
            raise
        finally:
            theirs.close()
            for fd in ends:
                os.close(fd)
        os.set_blocking(stdin_write, False)
        self._stdin, self._stdin_reader = stdin_write, stdin_read
        self._adopt(reply.fields["pid"], control, pipes)

    def _ask(self, source: str, *, stdin_open: bool) -> None:
        assert isinstance(self._control, ShellControlSocket)
        self._control.parts = 2
        self._discard_input()
        self._stdin_open = stdin_open
        self._control.request("ask" if stdin_open else "run", source)

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

    async def dump(self) -> tuple[str, list[str]]:
        """Return the session's state as shell code, and one line for each thing left behind. The caller holds the lock.

        :raises CannotFork: if the session does not respond.
        """
        control = self._control
        assert isinstance(control, ShellControlSocket)
        control.parts = 3
        try:
            answer = await self.answer_to(lambda: control.request("dump", ""), _DUMP_DEADLINE)
        finally:
            control.parts = 2
        text = answer[0].decode("utf-8", "surrogateescape")
        left = [line.removeprefix(_LEFT) for line in text.splitlines() if line.startswith(_LEFT)]
        return text, left

    async def restore(self, state: str) -> None:
        """Restore another session's state. The caller holds the lock.

        :raises CannotFork: if the session does not respond.
        """
        await self._ensure()
        control = self._control
        assert isinstance(control, ShellControlSocket)
        control.parts = 2
        await self.answer_to(lambda: control.request("restore", state), _DUMP_DEADLINE)
        if self._pipes is not None:
            self._pipes.drain()
            self._pipes.take()

    def _forget_process(self) -> None:
        super()._forget_process()
        if self._stdin >= 0:
            os.close(self._stdin)
            os.close(self._stdin_reader)
            self._stdin = self._stdin_reader = -1
