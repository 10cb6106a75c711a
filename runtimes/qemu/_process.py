"""Sandboxed QEMU process: start, control, end."""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Self, cast

import anyio

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes.qemu._guest_shell import GuestShell
from runtimes.qemu._qmp import QmpClient
from runtimes.qemu._sandbox import QemuSandbox, system_call_filter

_LONGEST_COMPLAINT = 4096
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
    text = os.pread(errors, _LONGEST_COMPLAINT, max(0, end - _LONGEST_COMPLAINT)).decode(errors="replace")
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and "terminating on signal" not in line
    ]
    return lines[-1].removeprefix("qemu-system-x86_64: ") if lines else "it ended without a message"


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
            own = its_commands.fileno(), its_port.fileno()
            process = await spawn(sandbox, program(*own), [*own, *fds], errors)
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
        while await self._state() == "finish-migrate":
            continue
        await self.qmp.execute("cont")

    async def _state(self) -> str:
        return cast("dict[str, str]", await self.qmp.execute("query-status"))["status"]

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
