"""Saved states: an image is booted once, and every session starts where that boot ended."""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes.qemu import _memory
from runtimes.qemu._hardware import BASE, DISK, INITRD, KERNEL, SAVED_DISK, MachineWiring, command_line
from runtimes.qemu._image import BootImage
from runtimes.qemu._process import Qemu, last_error_line, spawn
from runtimes.qemu._sandbox import QemuSandbox, user_for
from runtimes.qemu._screen import ScreenReader, is_blank, nearly_equal
from runtimes.qemu._settings import QemuSettings

MIB = 1 << 20
_LOOK_SECONDS = 0.25
_SETTLE_SECONDS = 0.5
_MAX_SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SavedState:
    """Files of one saved state. They are never written to again."""

    folder: Path
    """Directory of the files."""

    @property
    def memory(self) -> Path:
        """Memory of the guest."""
        return self.folder / "memory"

    @property
    def devices(self) -> Path:
        """State of the devices."""
        return self.folder / "devices"

    @property
    def disk(self) -> Path:
        """Changes of the boot to the disk."""
        return self.folder / "saved.qcow2"

    @property
    def empty_disk(self) -> Path:
        """Initial content of a session's own disk."""
        return self.folder / "empty.qcow2"


def image_files(image: BootImage) -> dict[str, Path]:
    """Return the files of an image by their names in the sandbox."""
    named = {KERNEL: image.kernel, INITRD: image.initrd, BASE: image.disk}
    return {name: path for name, path in named.items() if path is not None}


def file_bytes(settings: QemuSettings) -> int:
    """Return the maximum size of a file that a machine writes: its disk, or its state including memory."""
    return max(settings.disk_mib, settings.memory_mib + 256) * MIB


def default_folder() -> Path:
    """Return the default directory of saved states."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "agentflow" / "machines"


def _name(settings: QemuSettings, image: BootImage, *, kvm: bool, version: str) -> str:
    """Return a name that depends on the machine, the image, QEMU and, with KVM, the processor."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in image.files]
    wiring = MachineWiring(kvm=kvm, memory=0, disk=DISK if image.disk else None)
    processor = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0] if kvm else ""
    flags = [line for line in processor.splitlines() if line.startswith(("model name", "flags"))]
    parts = [files, command_line(settings, image, wiring, 0, 0), version, platform.machine(), flags]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    return f"{settings.snapshot_name}-{digest}"


async def ensure_saved_state(settings: QemuSettings, image: BootImage, *, kvm: bool) -> SavedState:
    """Return the saved state of an image; boot it if there is none yet.

    :raises RuntimeFailure: if the image does not boot.
    """
    folder = settings.state_dir or default_folder()
    done = await anyio.run_process(["qemu-system-x86_64", "--version"])
    name = await anyio.to_thread.run_sync(
        lambda: _name(settings, image, kvm=kvm, version=done.stdout.decode())
    )
    state = SavedState(folder / name)
    await anyio.to_thread.run_sync(lambda: folder.mkdir(parents=True, exist_ok=True, mode=0o700))
    async with _interprocess_lock(folder / f"{name}.lock"):
        if not state.folder.exists():
            await _make(settings, image, state.folder, kvm=kvm)
    return state


@contextlib.asynccontextmanager
async def _interprocess_lock(path: Path) -> AsyncGenerator[None]:
    """Hold a lock between processes."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await anyio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(fd)


async def _make(settings: QemuSettings, image: BootImage, folder: Path, *, kvm: bool) -> None:
    part = folder.with_name(f"{folder.name}.part")
    # Remains of a boot that was killed.
    await _remove(part)
    part.mkdir(mode=0o700)
    memory = _memory.create_memory(settings.memory_mib * MIB)
    try:
        await _boot(settings, image, SavedState(part), memory, kvm=kvm)
        await anyio.to_thread.run_sync(_memory.save_memory, memory, SavedState(part).memory)
        await anyio.to_thread.run_sync(_close, part)
        part.rename(folder)
    finally:
        os.close(memory)
        await _remove(part)


async def _remove(folder: Path) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))


def _close(folder: Path) -> None:
    """Make the files ours and read-only; the parent directory is private."""
    for path in folder.iterdir():
        os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
        path.chmod(0o444)


async def _boot(
    settings: QemuSettings, image: BootImage, state: SavedState, memory: int, *, kvm: bool
) -> None:
    user = user_for(secrets.randbits(24))
    writable: dict[str, Path] = {}
    if image.disk is not None:
        writable = {SAVED_DISK: state.disk}
        await _make_disk(user, image.disk, BASE, image.disk_format, SAVED_DISK, state.disk)
        await _make_disk(
            user, state.disk, SAVED_DISK, "qcow2", DISK, state.empty_disk, also={BASE: image.disk}
        )
    sandbox = QemuSandbox(
        user=user,
        read=image_files(image),
        write=writable,
        memory_bytes=settings.memory_mib * MIB,
        file_bytes=file_bytes(settings),
        kvm=kvm,
    )
    disk = SAVED_DISK if image.disk is not None else None
    wiring = MachineWiring(kvm=kvm, memory=memory, shared=True, disk=disk)
    qemu = await Qemu.start(sandbox, functools.partial(command_line, settings, image, wiring), fds=[memory])
    try:
        await _wait_booted(qemu, settings, image)
        devices = os.open(state.devices, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            await qemu.save(devices, memory=False)
        finally:
            os.close(devices)
    except InstanceGone:
        raise RuntimeFailure("the guest powered off while it booted") from None
    finally:
        await qemu.end()


async def _make_disk(
    user: int | None,
    base: Path,
    base_inside: str,
    base_format: str,
    target: str,
    path: Path,
    *,
    also: dict[str, Path] | None = None,
) -> None:
    """Create a disk that overlays its base. The base is untrusted, so it is read in a sandbox."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if user is not None:
        os.chown(path, user, user)
    sandbox = QemuSandbox(user=user, read={base_inside: base, **(also or {})}, write={target: path})
    errors = os.memfd_create("errors", os.MFD_CLOEXEC)
    try:
        words = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", base_format, "-b", base_inside, target]
        process = await spawn(sandbox, words, [], errors)
        try:
            code = await process.wait()
        except BaseException:
            process.kill()
            raise
        if code:
            raise RuntimeFailure(f"the image's disk cannot be used: {last_error_line(errors)}")
    finally:
        os.close(errors)


async def _wait_booted(qemu: Qemu, settings: QemuSettings, image: BootImage) -> None:
    """Wait until the guest is ready for a session.

    :raises RuntimeFailure: if it takes too long.
    """
    screen = ScreenReader(qemu.qmp)
    try:
        with anyio.fail_after(settings.boot_seconds):
            if image.door:
                await qemu.door.ready()
                with anyio.move_on_after(_MAX_SETTLE_SECONDS):
                    await _still(screen, _SETTLE_SECONDS)
            else:
                await _still(screen, settings.still_seconds)
    except TimeoutError:
        raise RuntimeFailure(
            f"the guest was not ready within {settings.boot_seconds:g} s: raise boot_seconds, "
            "or inspect its screen with another program"
        ) from None
    finally:
        screen.close()


async def _still(screen: ScreenReader, seconds: float) -> None:
    before = await screen.look()
    since = anyio.current_time()
    while anyio.current_time() - since < seconds:
        await anyio.sleep(_LOOK_SECONDS)
        after = await screen.look()
        if is_blank(after) or not nearly_equal(before, after):
            since = anyio.current_time()
        before = after
