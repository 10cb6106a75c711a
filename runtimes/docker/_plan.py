"""Description of a container that every launcher understands, and the launcher contract."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runtimes._protocol import MIB, WORKSPACE, Limits
from runtimes.docker.inside._paths import OLD_PYTHON

CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)
"""Capabilities of the init process; the agent's processes have none."""

_OWN_PROCESSES = 4
_SHARED_MEMORY = 64 * MIB


@dataclass(frozen=True, slots=True)
class ContainerMount:
    """Read-only host directory or file shown inside."""

    source: str
    """Path on the host."""
    target: str
    """Path inside."""


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """Directory in memory."""

    target: str
    """Path inside."""
    bytes: int
    """Capacity in bytes."""
    files: int
    """Maximum number of files."""
    mode: str = "1777"
    """Permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """Description of one container."""

    name: str
    """Name, unique on this machine."""
    argv: tuple[str, ...]
    """Command line of the init process."""
    env: Mapping[str, str]
    """Environment of the init process."""
    mounts: tuple[ContainerMount, ...]
    """Host paths that it shows."""
    hidden: tuple[str, ...]
    """Directories that appear empty."""
    limits: Limits
    """Resource limits."""
    image: str | None = None
    """Image for this container only, removed with it. The default is the runtime's image."""

    @property
    def folders(self) -> tuple[Tmpfs, ...]:
        """Writable directories."""
        disk, files = self.limits.disk_bytes, self.limits.files
        return (Tmpfs(WORKSPACE, disk, files), Tmpfs("/tmp", disk, files))

    @property
    def shared_memory(self) -> int:
        """Size of `/dev/shm` in bytes."""
        return min(_SHARED_MEMORY, self.limits.disk_bytes)

    @property
    def processes(self) -> int | None:
        """Process limit, with a reserve for the init process and its helpers."""
        return None if self.limits.processes is None else self.limits.processes + _OWN_PROCESSES


class Container(Protocol):
    """Running container."""

    async def failed(self) -> str:
        """Wait until it ends by itself; return the reason in one line."""
        ...

    async def layer(self) -> str | None:
        """Save everything but the workspace as an image for a fork; return its name, or `None` if nothing can change there."""
        ...

    async def commit(self, image: str) -> None:
        """Save everything but the workspace as an image of that name.

        :raises NotOffered: if the container is read-only.
        """
        ...

    async def end(self) -> None:
        """Kill it and remove everything that belongs to it. Idempotent."""
        ...


class ContainerLauncher(Protocol):
    """Program that starts containers."""

    @property
    def python(self) -> str:
        """Path of the interpreter inside."""
        ...

    @property
    def env(self) -> Mapping[str, str] | None:
        """Environment that the image sets; `None` if the host's programs are shown."""
        ...

    @property
    def mounts(self) -> tuple[ContainerMount, ...]:
        """Host paths that every container shows."""
        ...

    @property
    def hidden(self) -> tuple[str, ...]:
        """Directories that appear empty."""
        ...

    @property
    def network(self) -> bool:
        """True if containers have a network."""
        ...

    @property
    def alive(self) -> bool:
        """True while containers can be started."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Missing protections, and how to get them."""
        ...

    async def open(self, folder: str, realm: str, lives: Callable[[str], bool]) -> None:
        """Prepare, and remove the remains of dead servers of this realm. The directory's name is this server's name.

        :raises IsolationUnavailable: if containers cannot be used.
        """
        ...

    async def launch(self, plan: ContainerPlan) -> Container:
        """Start a container.

        :raises IsolationUnavailable: if it cannot be started.
        """
        ...

    async def close(self) -> None:
        """Release everything; all containers have ended."""
        ...


def exit_reason(status: int) -> str:
    """Return the reason for an exit status in a few words."""
    if status == OLD_PYTHON:
        return "its python3 is older than 3.11"
    return f"its init process exited with status {status}"
