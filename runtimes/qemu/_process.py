"""One QEMU in its cell: started, talked to, ended."""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Self, cast

import anyio

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes.qemu._confine import Cell, system_call_filter
from runtimes.qemu._door import Door
from runtimes.qemu._qmp import Qmp

_LONGEST_COMPLAINT = 4096
_FASTEST = 1 << 36
_GREETING_SECONDS = 30.0


async def spawn(cell: Cell, program: list[str], fds: list[int], errors: int) -> asyncio.subprocess.Process:
    """Start a program in a cell. It ends with this process, however that ends.

    :raises IsolationUnavailable: if it can't be started at all.
    """
    filter_fd = system_call_filter()
    try:
        # A file that grows too large is an error of that write, not the end of the program.
        return await asyncio.create_subprocess_exec(
            *cell.command(program, filter_fd),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[filter_fd, *fds],
            restore_signals=False,
        )
    except OSError as error:
        raise IsolationUnavailable(f"can't start {program[0]}: {error.strerror}") from None
    finally:
        os.close(filter_fd)


def complaint(errors: int) -> str:
    """The last line that a program wrote to its errors."""
    end = os.lseek(errors, 0, os.SEEK_END)
    text = os.pread(errors, _LONGEST_COMPLAINT, max(0, end - _LONGEST_COMPLAINT)).decode(errors="replace")
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and "terminating on signal" not in line
    ]
    return lines[-1].removeprefix("qemu-system-x86_64: ") if lines else "it ended without a word"


class Qemu:
    """A running QEMU. Make it with `Qemu.start`."""

    def __init__(self, process: asyncio.subprocess.Process, qmp: Qmp, door: Door, errors: int) -> None:
        self._process = process
        self._errors = errors
        self.qmp = qmp
        """Its commands."""
        self.door = door
        """The port of its guest."""

    @classmethod
    async def start(
        cls, cell: Cell, program: Callable[[int, int], list[str]], *, fds: Sequence[int] = ()
    ) -> Self:
        """Start one; `program` is told the descriptors for its commands and its guest's port.
        It also gets `fds`.

        :raises RuntimeFailure: with QEMU's own words, if it ends at once.
        """
        commands, its_commands = socket.socketpair()
        port, its_port = socket.socketpair()
        for ours in (commands, port):
            ours.setblocking(False)
        errors = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            own = its_commands.fileno(), its_port.fileno()
            process = await spawn(cell, program(*own), [*own, *fds], errors)
        except BaseException:
            commands.close()
            port.close()
            os.close(errors)
            raise
        finally:
            its_commands.close()
            its_port.close()
        qemu = cls(process, Qmp(commands), Door(port), errors)
        try:
            with anyio.fail_after(_GREETING_SECONDS):
                await qemu.qmp.open()
                await qemu.door.open()
        except (InstanceGone, TimeoutError):
            await qemu._process.wait() if qemu.qmp.ended.is_set() else None
            reason = complaint(errors)
            await qemu.end()
            raise RuntimeFailure(f"QEMU did not start: {reason}") from None
        except BaseException:
            await qemu.end()
            raise
        return qemu

    @property
    def pid(self) -> int:
        """The process that holds the cell."""
        return self._process.pid

    async def save(self, state: int, *, memory: bool) -> None:
        """Stop the machine and write its state to a descriptor; `memory` says whether that is in it.

        :raises RuntimeFailure: if it can't be saved.
        """
        await self.qmp.execute("stop")
        await self._prepare_moving(shared=not memory)
        await self._move("migrate", state)

    async def load(self, state: int, *, memory: bool) -> None:
        """Take over a state. The machine is stopped then.

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
            reason = complaint(self._errors)
            raise RuntimeFailure(f"the state of the machine could not be moved: {reason}")

    async def go_on(self) -> None:
        """Let the machine run."""
        # That its state is written is told a moment before QEMU has done with it.
        while await self._state() == "finish-migrate":
            continue
        await self.qmp.execute("cont")

    async def _state(self) -> str:
        return cast("dict[str, str]", await self.qmp.execute("query-status"))["status"]

    def kill(self) -> None:
        """End it at once, however that leaves things. Fine if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """End it and let go of all that it held. Fine if it has ended."""
        with anyio.CancelScope(shield=True):
            self.kill()
            await self._process.wait()
            self.door.close()
            # The one who holds the cell is gone; QEMU itself a moment later.
            with anyio.move_on_after(_GREETING_SECONDS):
                if self.qmp.opened:
                    await self.qmp.ended.wait()
            self.qmp.close()
            if self._errors >= 0:
                os.close(self._errors)
                self._errors = -1
