"""Choice of the accelerator. KVM is tested by booting a guest: a device file alone proves nothing."""

import os
import socket
from pathlib import Path

import anyio

from agentflow.errors import IsolationUnavailable, RuntimeFailure
from runtimes.qemu._hardware import INITRD, KERNEL, MachineWiring, command_line
from runtimes.qemu._image import BootImage
from runtimes.qemu._process import Qemu
from runtimes.qemu._sandbox import QemuSandbox
from runtimes.qemu._settings import QemuSettings

_SECONDS = 3.0
_SLOW = "guests run without KVM (TCG), about ten times slower"
_ALIVE = b"alive"


async def choose(settings: QemuSettings, image: BootImage, user: int | None) -> tuple[bool, str]:
    """Return true if KVM works, and a note if it does not.

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
        with anyio.fail_after(_SECONDS):
            return "" if await _boots(settings, image, user) else "no guest boots with it"
    except TimeoutError:
        return f"no guest boots with it within {_SECONDS:g} s"
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
    assert image.kernel is not None
    files = {KERNEL: image.kernel} | ({INITRD: image.initrd} if image.initrd else {})
    sandbox = QemuSandbox(user=user, read=files, memory_bytes=settings.memory_mib << 20, kvm=True)
    ours, its = socket.socketpair()
    ours.setblocking(False)

    def program(qmp: int, door: int) -> list[str]:
        words = command_line(settings, image, MachineWiring(qmp=qmp, door=door, kvm=True, memory=None))
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
