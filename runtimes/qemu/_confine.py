"""The cell that QEMU runs in: its own namespaces and user, no network, nothing to see but its files, hard limits."""

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
"""Programs, and Debian's packages of them."""

_FIRST_USER = 0x6F000000
_USERS = 1 << 24
_OVERHEAD = 1 << 30
"""Address space beside the guest's memory: QEMU itself, its libraries, what it translates to."""
_PROCESSES = 64
_OPEN_FILES = 256


def require() -> None:
    """Refuse where a program is missing.

    :raises IsolationUnavailable: naming it and its package.
    """
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            raise IsolationUnavailable(f"{program} is missing: install {package} (apt-get install {package})")


def user_for(number: int) -> int | None:
    """The host's id of one machine's user; `None` where this process may not choose one."""
    return _FIRST_USER + number % _USERS if os.geteuid() == 0 else None


def system_call_filter() -> int:
    """A descriptor of the filter of system calls that everything in a cell lives under."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(fd, _seccomp.build_filter(notify=False))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one process gets to see, and how much it may use."""

    user: int | None
    """The host's user that it runs as; `None` for whoever started it, in a user namespace of its own."""
    read: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Files that it may read: path inside -> path on the host."""
    write: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Files that it may write."""
    memory_bytes: int = 0
    """Memory of the guest."""
    file_bytes: int = 1 << 30
    """Size of any file that it writes."""
    kvm: bool = False
    """It may use the processor's virtualization."""

    def command(self, program: list[str], filter_fd: int) -> list[str]:
        """The command that runs a program in the cell; the filter's descriptor must be handed down."""
        limits = [
            f"--as={self.memory_bytes + _OVERHEAD}",
            f"--fsize={self.file_bytes}",
            f"--nofile={_OPEN_FILES}",
            "--core=0",
        ]
        if self.user is not None:
            # Nobody else has this user, so that the count is the machine's own.
            limits.append(f"--nproc={_PROCESSES}")
        return ["prlimit", *limits, "--", *self._bwrap(filter_fd), "--", *self._as_user(), *program]

    def _bwrap(self, filter_fd: int) -> list[str]:
        words = [
            "bwrap",
            "--unshare-pid",
            "--unshare-net",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]
        words += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "machine"]
        words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--dir", "/machine"]
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                words += ["--ro-bind", f"/{name}", f"/{name}"]
        for inside, outside in self.read.items():
            words += ["--ro-bind", str(outside), inside]
        for inside, outside in self.write.items():
            words += ["--bind", str(outside), inside]
        if self.kvm:
            words += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
        words += ["--remount-ro", "/", "--chdir", "/", "--seccomp", str(filter_fd), "--cap-drop", "ALL"]
        if self.user is None:
            return [*words, "--unshare-user", "--disable-userns"]
        # To become somebody else, and to lose all of these by it.
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            words += ["--cap-add", f"CAP_{capability}"]
        return words

    def _as_user(self) -> list[str]:
        if self.user is None:
            return []
        groups = [f"--groups={os.stat('/dev/kvm').st_gid}"] if self.kvm else ["--clear-groups"]
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", *groups,
                "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]  # fmt: skip
