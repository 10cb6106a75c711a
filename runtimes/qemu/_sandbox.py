"""Sandbox for the QEMU process: own namespaces and user, no network, only the named files, hard limits."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentflow.errors import IsolationUnavailable
from runtimes.process.linux import _seccomp

NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "bwrap": "bubblewrap",
    "prlimit": "util-linux",
    "setpriv": "util-linux",
}
"""Programs and the Debian packages that contain them."""

_FIRST_USER = 0x6F000000
_USERS = 1 << 24
_OVERHEAD = 1 << 30
"""Address space in addition to the guest's memory: QEMU itself, its libraries, translated code."""
_PROCESSES = 64
_OPEN_FILES = 256


def require() -> None:
    """Check that all programs are installed.

    :raises IsolationUnavailable: naming the missing program and its package.
    """
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            raise IsolationUnavailable(f"{program} is missing: install {package} (apt-get install {package})")


def user_for(number: int) -> int | None:
    """Return the host user id of one machine; `None` if this process may not choose one."""
    return _FIRST_USER + number % _USERS if os.geteuid() == 0 else None


def system_call_filter() -> int:
    """Return a descriptor with the system-call filter of every sandboxed QEMU."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(fd, _seccomp.build_filter(notify=False))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuSandbox:
    """Files and limits of one sandboxed process."""

    user: int | None
    """Host user id to run as; `None` for the current user, in a new user namespace."""
    read: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Readable files: path inside -> path on the host."""
    write: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Writable files: path inside -> path on the host."""
    memory_bytes: int = 0
    """Memory of the guest in bytes."""
    file_bytes: int = 1 << 30
    """Maximum size of a written file in bytes."""
    kvm: bool = False
    """Access to the processor's virtualization."""

    def command(self, program: list[str], filter_fd: int) -> list[str]:
        """Return the command that runs a program in the sandbox; the child must inherit the filter's descriptor."""
        limits = [f"--as={self.memory_bytes + _OVERHEAD}", f"--fsize={self.file_bytes}"]
        limits += [f"--nofile={_OPEN_FILES}", "--core=0"]
        if self.user is not None:
            # No other process has this user id, so the limit counts this machine's processes only.
            limits.append(f"--nproc={_PROCESSES}")
        return ["prlimit", *limits, "--", *self._bwrap(filter_fd), "--", *self._as_user(), *program]

    def _bwrap(self, filter_fd: int) -> list[str]:
        words = ["bwrap", *(f"--unshare-{kind}" for kind in ("pid", "net", "ipc", "uts", "cgroup-try"))]
        words += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "machine"]
        words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--dir", "/machine"]
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                words += ["--ro-bind", f"/{name}", f"/{name}"]
        for target, source in self.read.items():
            words += ["--ro-bind", str(source), target]
        for target, source in self.write.items():
            words += ["--bind", str(source), target]
        if self.kvm:
            words += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
        words += ["--remount-ro", "/", "--chdir", "/", "--seccomp", str(filter_fd), "--cap-drop", "ALL"]
        if self.user is None:
            return [*words, "--unshare-user", "--disable-userns"]
        # Needed to change the user id, which drops all of them.
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            words += ["--cap-add", f"CAP_{capability}"]
        return words

    def _as_user(self) -> list[str]:
        if self.user is None:
            return []
        groups = [f"--groups={os.stat('/dev/kvm').st_gid}"] if self.kvm else ["--clear-groups"]
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", *groups,
                "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]  # fmt: skip
