"""Sandboxed QEMU process: start, control, end; and a root shell in its guest for evaluators."""

import asyncio
import base64
import binascii
import contextlib
import os
import shlex
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Self

import anyio
import msgspec

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes._protocol import ExecResult, Outcome
from runtimes.qemu._qmp import QmpClient
from runtimes.qemu._sandbox import QemuSandbox, system_call_filter

MAX_SCRIPT = 65_536
_MAX_ANSWER = 128 << 20
_GRACE = 20.0
_KILLED = 137
_IS_MISSING, _IS_NO_FILE = 66, 67


class GuestShell:
    """Root shell in a guest: an image of ours runs the scripts sent through a port that only the host has."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.lock = anyio.Lock()
        """Held while a command runs; it keeps others from starting."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._number = 0

    async def open(self) -> None:
        """Take over the connection."""
        self._streams = await asyncio.open_connection(sock=self._sock, limit=_MAX_ANSWER)

    async def ready(self) -> None:
        """Wait until the guest reports that it has booted."""
        while await self._line() != b"ready":
            pass

    async def run(self, argv: Sequence[str], timeout: float) -> ExecResult:
        """Run a command to its end.

        :raises ValueError: if the command is invalid.
        :raises RuntimeFailure: if the guest does not answer.
        """
        if not argv or not argv[0] or any("\0" in word for word in argv):
            raise ValueError("a command needs a program, and none of its arguments may contain a NUL")
        return await self._script(shlex.join(argv), timeout)

    async def read(self, path: str, timeout: float) -> bytes:
        """Return the content of a file; raise the matching `OSError`."""
        if "\0" in path:
            raise ValueError("a path must not contain a NUL")
        name = shlex.quote(path if path.startswith("/") else f"./{path}")
        script = f"[ -e {name} ] || exit {_IS_MISSING}; [ -f {name} ] || exit {_IS_NO_FILE}; cat {name}"
        result = await self._script(script, timeout)
        if result.exit_code == _IS_MISSING:
            raise FileNotFoundError(2, "no such file inside", path)
        if result.exit_code == _IS_NO_FILE:
            raise IsADirectoryError(21, "not a regular file inside", path)
        if result.exit_code:
            reason = result.stderr.decode(errors="replace").strip() or result.outcome.value
            raise OSError(5, f"cannot be read inside: {reason}", path)
        return result.stdout

    async def _script(self, script: str, timeout: float) -> ExecResult:
        text = base64.b64encode(script.encode("utf-8", "surrogateescape"))
        if len(text) > MAX_SCRIPT:
            raise ValueError(f"a command is limited to {MAX_SCRIPT * 3 // 4} bytes")
        async with self.lock:
            self._number += 1
            number = b"%d" % self._number
            assert self._streams is not None
            self._streams[1].write(b"%s %g %s\n" % (number, timeout, text))
            try:
                with anyio.fail_after(timeout + _GRACE):
                    while not (line := await self._line()).startswith(number + b" "):
                        # Rest of an answer whose request was cancelled.
                        pass
            except TimeoutError:
                raise RuntimeFailure(
                    "the guest's control shell does not answer; the guest hangs or was modified"
                ) from None
        return await anyio.to_thread.run_sync(_result, line)

    async def _line(self) -> bytes:
        assert self._streams is not None
        try:
            line = await self._streams[0].readline()
        except ValueError:
            raise RuntimeFailure("the guest's answer is too long") from None
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise InstanceGone("the machine has ended")
        return line.strip()

    def close(self) -> None:
        """Close the connection."""
        if self._streams is None:
            self._sock.close()
        else:
            self._streams[1].transport.abort()


def _result(line: bytes) -> ExecResult:
    try:
        _, code, *outputs = line.split(b" ")
        stdout, stderr = (b"" if text == b"=" else base64.b64decode(text, validate=True) for text in outputs)
        late = code == b"late"
        exit_code = _KILLED if late else int(code)
    except (ValueError, binascii.Error):
        raise RuntimeFailure(
            "the guest's control shell sent a malformed answer; the guest was modified"
        ) from None
    return ExecResult(
        outcome=Outcome.TIMEOUT if late else Outcome.OK,
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        detail="the command timed out and was killed with all its child processes" if late else "",
    )


_MAX_COMPLAINT = 4096
_FASTEST = 1 << 36
_GREETING_SECONDS = 30.0


async def spawn(
    sandbox: QemuSandbox, program: list[str], fds: list[int], errors: int
) -> asyncio.subprocess.Process:
    """Start a program in a sandbox. It ends with this process, however that ends.

    :raises IsolationUnavailable: if it cannot be started.
    """
    filter_fd = system_call_filter()
    try:
        # A file that grows too large fails that write instead of killing the program.
        return await asyncio.create_subprocess_exec(
            *sandbox.command(program, filter_fd),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[filter_fd, *fds],
            restore_signals=False,
        )
    except OSError as error:
        raise IsolationUnavailable(f"cannot start {program[0]}: {error.strerror}") from None
    finally:
        os.close(filter_fd)


def last_error_line(errors: int) -> str:
    """Return the last line that a program wrote to its standard error."""
    end = os.lseek(errors, 0, os.SEEK_END)
    text = os.pread(errors, _MAX_COMPLAINT, max(0, end - _MAX_COMPLAINT)).decode(errors="replace")
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and "terminating on signal" not in line
    ]
    return lines[-1].removeprefix("qemu-system-x86_64: ") if lines else "it ended without a message"


class _Status(msgspec.Struct):
    status: str


class Qemu:
    """Running QEMU. Create it with `Qemu.start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, qmp: QmpClient, door: GuestShell, errors: int
    ) -> None:
        self._process = process
        self._errors = errors
        self.qmp = qmp
        """QMP connection."""
        self.door = door
        """Control shell of the guest."""

    @classmethod
    async def start(
        cls, sandbox: QemuSandbox, program: Callable[[int, int], list[str]], *, fds: Sequence[int] = ()
    ) -> Self:
        """Start a process. `program` receives the descriptors of its QMP socket and its guest's port; the child also
        inherits `fds`.

        :raises RuntimeFailure: with QEMU's own message, if it ends at once.
        """
        commands, its_commands = socket.socketpair()
        port, its_port = socket.socketpair()
        for ours in (commands, port):
            ours.setblocking(False)
        errors = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            descriptors = its_commands.fileno(), its_port.fileno()
            process = await spawn(sandbox, program(*descriptors), [*descriptors, *fds], errors)
        except BaseException:
            commands.close()
            port.close()
            os.close(errors)
            raise
        finally:
            its_commands.close()
            its_port.close()
        qemu = cls(process, QmpClient(commands), GuestShell(port), errors)
        try:
            with anyio.fail_after(_GREETING_SECONDS):
                await qemu.qmp.open()
                await qemu.door.open()
        except (InstanceGone, TimeoutError):
            await qemu._process.wait() if qemu.qmp.ended.is_set() else None
            reason = last_error_line(errors)
            await qemu.end()
            raise RuntimeFailure(f"QEMU did not start: {reason}") from None
        except BaseException:
            await qemu.end()
            raise
        return qemu

    @property
    def pid(self) -> int:
        """Process id of the sandbox."""
        return self._process.pid

    async def save(self, state: int, *, memory: bool) -> None:
        """Pause the machine and write its state to a descriptor; `memory` includes the guest's memory.

        :raises RuntimeFailure: if it cannot be saved.
        """
        await self.qmp.execute("stop")
        await self._prepare_moving(shared=not memory)
        await self._move("migrate", state)

    async def load(self, state: int, *, memory: bool) -> None:
        """Load a state. The machine is paused afterwards.

        :raises RuntimeFailure: if it does not fit.
        """
        await self._prepare_moving(shared=not memory)
        await self._move("migrate-incoming", state)

    async def _prepare_moving(self, *, shared: bool) -> None:
        switches = {"events": True, "x-ignore-shared": shared}
        capabilities = [{"capability": name, "state": state} for name, state in switches.items()]
        await self.qmp.execute("migrate-set-capabilities", capabilities=capabilities)
        await self.qmp.execute("migrate-set-parameters", max_bandwidth=_FASTEST)

    async def _move(self, command: str, state: int) -> None:
        ended = self.qmp.expect(
            lambda name, data: name == "MIGRATION" and data.get("status") in ("completed", "failed")
        )
        await self.qmp.execute("getfd", fds=[state], fdname="state")
        await self.qmp.execute(command, uri="fd:state")
        if (await ended)["status"] == "failed":
            reason = last_error_line(self._errors)
            raise RuntimeFailure(f"the state of the machine could not be moved: {reason}")

    async def resume(self) -> None:
        """Resume the machine."""
        # QEMU reports completion a moment before it has finished.
        while msgspec.convert(await self.qmp.execute("query-status"), _Status).status == "finish-migrate":
            continue
        await self.qmp.execute("cont")

    def kill(self) -> None:
        """Kill it at once. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """Kill it and release its resources. Idempotent."""
        with anyio.CancelScope(shield=True):
            self.kill()
            await self._process.wait()
            self.door.close()
            # The process that holds the sandbox is gone; QEMU itself follows a moment later.
            with anyio.move_on_after(_GREETING_SECONDS):
                if self.qmp.opened:
                    await self.qmp.ended.wait()
            self.qmp.close()
            if self._errors >= 0:
                os.close(self._errors)
                self._errors = -1
