"""Resources that a runtime holds: processes, descriptors, mounts, cgroups, namespaces, folders."""

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil

_KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Trusted:
    """The runtime's trusted processes."""

    host_monitor: int
    mount_helper: int
    sandbox_init: int

    @property
    def zygote(self) -> int:
        """The zygote: the only child of the zygote starter."""
        [zygote] = children(self.zygote_starter)
        return zygote

    @property
    def zygote_starter(self) -> int:
        """The process that forks the zygote."""
        return self._helper("zygote-starter")

    @property
    def kill_helper(self) -> int:
        """The process that kills all processes of a sandbox's user."""
        return self._helper("kill-helper")

    def _helper(self, name: str) -> int:
        """Return a child of the sandbox init process in the same pid namespace."""
        depth = len(_status(self.sandbox_init, "NSpid"))
        return next(
            pid
            for pid in children(self.sandbox_init)
            if _name(pid) == name and len(_status(pid, "NSpid")) == depth
        )

    @property
    def inits(self) -> list[int]:
        """The pause process of each fork group."""
        return [pid for pid in children(self.sandbox_init) if _status(pid, "NSpid")[-1:] == ["1"]]

    @property
    def folder(self) -> Path:
        """Its folder on disk."""
        for link in Path(f"/proc/{self.host_monitor}/fd").iterdir():
            target = Path(os.readlink(link))
            if target.name == "lock":
                return target.parent
        raise LookupError("the host monitor holds no folder")

    def groups(self) -> list[Path]:
        """Its cgroup in each hierarchy."""
        return groups_of(self.folder.name)

    def sandboxed(self) -> list[int]:
        """Every other process of the runtime."""
        trusted = {self.host_monitor, *children(self.host_monitor), self.sandbox_init}
        return [pid for pid in descendants(self.host_monitor) if pid not in trusted]


def groups_of(name: str) -> list[Path]:
    """Return the cgroups of a server by name."""
    return [
        Path(folder)
        for folder, _, _ in os.walk("/sys/fs/cgroup")
        if "/agentflow-" in folder and folder.endswith(f"-{name}")
    ]


def _status(pid: int, name: str) -> list[str]:
    """Return a field of a process's status; empty if the process has ended."""
    try:
        lines = read(f"/proc/{pid}/status").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return next(line for line in lines if line.startswith(f"{name}:")).split()[1:]


def _name(pid: int) -> str:
    return "".join(_status(pid, "Name"))


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def trusted_processes(server: int | None = None) -> Trusted:
    """Return the trusted processes of the one runtime of a server, by default of this process."""
    for child in children(server or os.getpid()):
        if "_host_monitor" in read(f"/proc/{child}/cmdline"):
            # The host monitor's other child, the cgroup warmer, has no children.
            mount_helper, init = next((pid, inner) for pid in children(child) for inner in children(pid))
            return Trusted(child, mount_helper, init)
    raise LookupError("no runtime is running")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything held at one moment, in a form that can be compared."""

    processes: list[int]
    descriptors: dict[str, int]
    mounts: dict[str, int]
    groups: list[Path]
    namespaces: set[str]
    files: list[Path]


def holdings(trusted: Trusted) -> Holdings:
    """Return everything that the runtime and this process hold now."""
    # Garbage does not count.
    gc.collect()
    helpers = {
        "server": os.getpid(),
        "host_monitor": trusted.host_monitor,
        "mount_helper": trusted.mount_helper,
        "sandbox_init": trusted.sandbox_init,
    }
    helpers |= {
        "zygote_starter": trusted.zygote_starter,
        "zygote": trusted.zygote,
        "kill_helper": trusted.kill_helper,
    }
    everything = [*helpers.values(), *trusted.sandboxed()]
    namespaces = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in everything for kind in _KINDS}
    namespaces |= {link for pid in helpers.values() for link in _links(pid) if link.split(":")[0] in _KINDS}
    return Holdings(
        sorted(trusted.sandboxed()),
        {name: len(_links(pid)) for name, pid in helpers.items()},
        {name: read(f"/proc/{pid}/mountinfo").count("\n") for name, pid in helpers.items()},
        sorted(folder for group in trusted.groups() for folder in group.rglob("*") if folder.is_dir()),
        namespaces,
        sorted(trusted.folder.rglob("*")),
    )


def _links(pid: int) -> list[str]:
    links: list[str] = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return links


async def ended(pid: int) -> None:
    """Wait until a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(fd)
    finally:
        os.close(fd)
