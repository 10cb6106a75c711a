"""Runtime of virtual machines restored from one boot, and its choice of the accelerator."""

import fcntl
import os
import secrets
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from agentflow.actors import together
from agentflow.errors import IsolationUnavailable, RuntimeFailure
from runtimes._protocol import Capabilities
from runtimes.process._pool import ReadyPool
from runtimes.process.trusted import _server_folder
from runtimes.qemu import _memory, _sandbox, _saved_states
from runtimes.qemu._hardware import DISK, INITRD, KERNEL, SAVED_DISK, MachineWiring, command_line
from runtimes.qemu._image import BootImage, load_image
from runtimes.qemu._machine import QemuMachine
from runtimes.qemu._process import Qemu
from runtimes.qemu._sandbox import QemuSandbox, user_for
from runtimes.qemu._settings import QemuSettings

_KVM_SECONDS = 3.0
_SLOW = "guests run without KVM (TCG), about ten times slower"
_ALIVE = b"alive"
_PIPE_BYTES = 1 << 20


class QemuRuntime:
    """Runtime whose machines start where one boot of an image ended. See `runtimes.MachineRuntime` and docs/qemu-runtime.md."""

    def __init__(self, settings: QemuSettings) -> None:
        self._settings = settings
        self._image = load_image(settings.image)
        self.folder = Path()
        """Directory of its machines' disks, while it is entered."""
        self._entered = False
        self._kvm: bool | None = None
        self._notes: tuple[str, ...] = ()
        self._state: _saved_states.SavedState | None = None
        self._memory = -1
        self._preparing = anyio.Lock()
        self._machines: dict[str, QemuMachine] = {}
        self._machine_count = 0
        self._pool = ReadyPool(self._restore, settings.pool)

    async def __aenter__(self) -> Self:
        _sandbox.require()
        self.folder = Path(_server_folder.parent_folder(), secrets.token_hex(6))
        await anyio.to_thread.run_sync(_server_folder.claim, str(self.folder))
        self._entered = True
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = False
        try:
            await self._pool.__aexit__(*exc)
        finally:
            with anyio.CancelScope(shield=True):
                for machine in list(self._machines.values()):
                    await machine.stop()
                if self._memory >= 0:
                    os.close(self._memory)
                    self._memory = -1
                await anyio.to_thread.run_sync(_server_folder.remove, str(self.folder))

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities on this machine. Whether KVM works is known only after the first start."""
        return Capabilities(
            fork="live", snapshot=False, network=False, gpu=False, screen=True, root=True, notes=self._notes
        )

    @property
    def alive(self) -> bool:
        """True while it is entered."""
        return self._entered

    async def warmup(self) -> None:
        """Load the saved state, booting the image if necessary, and fill the pool."""
        await self._prepare()
        await self._pool.full()

    async def start(self) -> QemuMachine:
        """Start a machine in the saved state.

        :raises IsolationUnavailable: if this machine lacks the isolation or a program.
        :raises RuntimeFailure: if the limit of machines is reached, or the image does not boot.
        """
        if self._pool.filling and self._machine_count >= self._settings.machines:
            # The last slot belongs to a machine that is being made for the pool.
            await self._pool.full()
        while (machine := self._pool.take()) is not None:
            if not machine.qemu.qmp.ended.is_set():
                return await _running(machine)
            await machine.stop()
        return await _running(await self._restore())

    async def _prepare(self) -> _saved_states.SavedState:
        async with self._preparing:
            if self._state is None:
                if self._kvm is None:
                    user = user_for(secrets.randbits(24))
                    self._kvm, note = await choose_accelerator(self._settings, self._image, user)
                    self._notes = (note,) if note else ()
                state = await _saved_states.ensure_saved_state(self._settings, self._image, kvm=self._kvm)
                self._memory = await anyio.to_thread.run_sync(_memory.load_memory, state.memory)
                self._state = state
        return self._state

    async def _restore(self) -> QemuMachine:
        state = await self._prepare()
        devices = os.open(state.devices, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return await self._make(state, state.empty_disk, devices, is_fork=False)
        finally:
            os.close(devices)

    async def _fork(self, parent: QemuMachine) -> QemuMachine:
        state = await self._prepare()
        changes = os.memfd_create("state", os.MFD_CLOEXEC)
        try:
            try:
                await self._save_changes(parent, changes)
                child = await self._make(state, self._disk_of(parent.id), changes, is_fork=True)
            finally:
                with anyio.CancelScope(shield=True):
                    await parent.qemu.resume()
        finally:
            os.close(changes)
        return await _running(child)

    async def _save_changes(self, parent: QemuMachine, changes: int) -> None:
        """Pause a machine and write its state, with the memory that it has changed since the boot."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # The thread owns its descriptors: it may outlive a cancelled fork.
        target, base = os.dup(changes), _memory.map_memory(self._memory)

        async def write() -> None:
            await anyio.to_thread.run_sync(
                _memory.write_changes, reader, target, base, abandon_on_cancel=True
            )

        async def save() -> None:
            try:
                await parent.qemu.save(writer, memory=True)
            finally:
                os.close(writer)

        await together([write, save])
        os.lseek(changes, 0, os.SEEK_SET)

    def _disk_of(self, name: str) -> Path:
        return self.folder / f"{name}.qcow2"

    async def _make(
        self, state: _saved_states.SavedState, disk: Path, devices: int, *, is_fork: bool
    ) -> QemuMachine:
        """Start a paused machine from a state, which for a fork has changes of the memory."""
        if not self._entered:
            raise RuntimeFailure("the runtime is not started: use `async with`")
        if self._machine_count >= self._settings.machines:
            raise RuntimeFailure(
                f"the limit of {self._machine_count} machines is reached: stop one, or raise machines"
            )
        self._machine_count += 1
        name = secrets.token_hex(8)
        try:
            qemu = await self._start(name, state, disk)
            try:
                await qemu.load(devices, memory=is_fork)
            except BaseException:
                await qemu.end()
                raise
        except BaseException:
            self._machine_count -= 1
            self._disk_of(name).unlink(missing_ok=True)
            raise
        machine = QemuMachine(name, qemu, self._image, fork=self._fork, stop=self._stopped)
        self._machines[name] = machine
        return machine

    async def _start(self, name: str, state: _saved_states.SavedState, disk: Path) -> Qemu:
        user = user_for(secrets.randbits(24))
        read, write = _saved_states.image_files(self._image), dict[str, Path]()
        if self._image.disk is not None:
            machine_disk = self._disk_of(name)
            await anyio.to_thread.run_sync(_copy_disk, disk, machine_disk, user)
            read[SAVED_DISK], write[DISK] = state.disk, machine_disk
        kvm = bool(self._kvm)
        sandbox = QemuSandbox(
            user=user,
            read=read,
            write=write,
            memory_bytes=self._settings.memory_mib << 20,
            file_bytes=_saved_states.file_bytes(self._settings),
            kvm=kvm,
        )
        wiring = MachineWiring(kvm=kvm, memory=self._memory, disk=DISK if write else None, incoming=True)
        program = partial(command_line, self._settings, self._image, wiring)
        return await Qemu.start(sandbox, program, fds=[self._memory])

    async def _stopped(self, machine: QemuMachine) -> None:
        if self._machines.pop(machine.id, None) is not None:
            self._machine_count -= 1
            self._disk_of(machine.id).unlink(missing_ok=True)


async def _running(machine: QemuMachine) -> QemuMachine:
    try:
        await machine.qemu.resume()
    except BaseException:
        await machine.stop()
        raise
    return machine


def _copy_disk(source: Path, target: Path, user: int | None) -> None:
    """Copy a disk that a machine may have written to, without following a symlink in its place."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        open(os.open(source, os.O_RDONLY | flags), "rb") as from_file,
        open(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600), "wb") as to_file,
    ):
        shutil.copyfileobj(from_file, to_file, 1 << 20)
    if user is not None:
        os.chown(target, user, user)


async def choose_accelerator(settings: QemuSettings, image: BootImage, user: int | None) -> tuple[bool, str]:
    """Return true if KVM works, and a note if it does not. It is tested by booting a guest: a device file proves nothing.

    :raises IsolationUnavailable: if the settings require KVM and it does not work.
    """
    if settings.accelerator == "tcg":
        return False, ""
    reason = await _obstacle(settings, image, user)
    if reason and settings.accelerator == "kvm":
        raise IsolationUnavailable(f"KVM cannot be used: {reason}; set accelerator to auto or tcg")
    return not reason, f"{_SLOW}: {reason}" if reason else ""


async def _obstacle(settings: QemuSettings, image: BootImage, user: int | None) -> str:
    if reason := _closed(user):
        return reason
    if image.kernel is None:
        if settings.accelerator == "auto" and _is_guest():
            return "this machine is a guest itself, and an image without a kernel cannot be tested; set accelerator: kvm to force it"
        return ""
    try:
        with anyio.fail_after(_KVM_SECONDS):
            return "" if await _boots(settings, image, user) else "no guest boots with it"
    except TimeoutError:
        return f"no guest boots with it within {_KVM_SECONDS:g} s"
    except RuntimeFailure as error:
        return str(error)


def _closed(user: int | None) -> str:
    try:
        device = os.stat("/dev/kvm")
    except FileNotFoundError:
        return "there is no /dev/kvm: use a machine with virtualization, and load kvm_intel or kvm_amd"
    if user is None:
        may = os.access("/dev/kvm", os.R_OK | os.W_OK)
        return "" if may else "/dev/kvm is not accessible to this user: usermod -aG kvm USER"
    group_may = device.st_mode & 0o060 == 0o060 and device.st_gid != 0
    if group_may or device.st_mode & 0o006 == 0o006:
        return ""
    return "/dev/kvm is accessible to root only: chgrp kvm /dev/kvm && chmod 660 /dev/kvm"


def _is_guest() -> bool:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return any(line.startswith("flags") and " hypervisor" in line for line in lines)


async def _boots(settings: QemuSettings, image: BootImage, user: int | None) -> bool:
    """Return true if the guest's init process writes to its serial port."""
    files = {KERNEL: image.kernel, INITRD: image.initrd}
    read = {name: path for name, path in files.items() if path is not None}
    sandbox = QemuSandbox(user=user, read=read, memory_bytes=settings.memory_mib << 20, kvm=True)
    ours, its = socket.socketpair()
    ours.setblocking(False)

    def program(qmp: int, door: int) -> list[str]:
        words = command_line(settings, image, MachineWiring(kvm=True, memory=None), qmp, door)
        return [*words, "-chardev", f"socket,id=serial,fd={its.fileno()}", "-serial", "chardev:serial"]

    try:
        qemu = await Qemu.start(sandbox, program, fds=[its.fileno()])
    except BaseException:
        ours.close()
        raise
    finally:
        its.close()
    stream = await anyio.abc.SocketStream.from_socket(ours)
    try:
        heard = b""
        while _ALIVE not in heard:
            heard = heard[-len(_ALIVE) :] + await stream.receive()
        return True
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return False
    finally:
        await qemu.end()
        await anyio.aclose_forcefully(stream)
