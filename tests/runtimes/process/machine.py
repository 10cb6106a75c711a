"""What a runtime holds of the machine: processes, descriptors, mounts, groups, namespaces, folders."""

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
    """The runtime's own processes."""

    warden: int
    porter: int
    mason: int

    @property
    def zygote(self) -> int:
        """The template interpreter: beside the killer the one child of the mason in the mason's own pid namespace."""
        return next(pid for pid in self._helpers if _name(pid) != "killer")

    @property
    def killer(self) -> int:
        """The process that ends what a sandbox's user runs."""
        return next(pid for pid in self._helpers if _name(pid) == "killer")

    @property
    def _helpers(self) -> list[int]:
        depth = len(_status(self.mason, "NSpid"))
        return [pid for pid in children(self.mason) if len(_status(pid, "NSpid")) == depth]

    @property
    def inits(self) -> list[int]:
        """The first process of each family."""
        return [pid for pid in children(self.mason) if _status(pid, "NSpid")[-1:] == ["1"]]

    @property
    def folder(self) -> Path:
        """What it keeps on disk."""
        for link in Path(f"/proc/{self.warden}/fd").iterdir():
            target = Path(os.readlink(link))
            if target.name == "lock":
                return target.parent
        raise LookupError("the warden holds no folder")

    def groups(self) -> list[Path]:
        """Its cgroup in each hierarchy."""
        return groups_of(self.folder.name)

    def sandboxed(self) -> list[int]:
        """Every other process of the runtime."""
        trusted = {self.warden, *children(self.warden), self.mason}
        return [pid for pid in descendants(self.warden) if pid not in trusted]


def groups_of(name: str) -> list[Path]:
    """The cgroups of the server of that name."""
    return [
        Path(folder)
        for folder, _, _ in os.walk("/sys/fs/cgroup")
        if "/agentflow-" in folder and folder.endswith(f"-{name}")
    ]


def _status(pid: int, name: str) -> list[str]:
    """What the kernel says of a process; nothing if it has gone meanwhile."""
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
    """Those of the one runtime of a process, by default of this one."""
    for child in children(server or os.getpid()):
        if "_host_monitor" in read(f"/proc/{child}/cmdline"):
            # The warden has another child beside the porter, which has none itself.
            porter, mason = next((pid, inner) for pid in children(child) for inner in children(pid))
            return Trusted(child, porter, mason)
    raise LookupError("no runtime is running")


@dataclass(frozen=True, slots=True)
class Holdings:
    """All that is held at one moment, in a form that can be compared."""

    processes: list[int]
    descriptors: dict[str, int]
    mounts: dict[str, int]
    groups: list[Path]
    namespaces: set[str]
    files: list[Path]


def holdings(trusted: Trusted) -> Holdings:
    """What the runtime and this process hold now."""
    # What is garbage nobody holds.
    gc.collect()
    own = {"server": os.getpid(), "warden": trusted.warden, "porter": trusted.porter, "mason": trusted.mason}
    own |= {"zygote": trusted.zygote, "killer": trusted.killer}
    everybody = [*own.values(), *trusted.sandboxed()]
    namespaces = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in everybody for kind in _KINDS}
    namespaces |= {link for pid in own.values() for link in _links(pid) if link.split(":")[0] in _KINDS}
    return Holdings(
        sorted(trusted.sandboxed()),
        {name: len(_links(pid)) for name, pid in own.items()},
        {name: read(f"/proc/{pid}/mountinfo").count("\n") for name, pid in own.items()},
        sorted(folder for group in trusted.groups() for folder in group.rglob("*") if folder.is_dir()),
        namespaces,
        sorted(trusted.folder.rglob("*")),
    )


def _links(pid: int) -> list[str]:
    found: list[str] = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


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
