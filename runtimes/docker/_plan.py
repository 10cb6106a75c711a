"""Options of the container runtimes, description of a container that every launcher understands, launcher contract."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentflow.settings import Section
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

_MASKED_OF_PROC = (
    "acpi",
    "asound",
    "interrupts",
    "kallsyms",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
)
MASKED = (*(f"/proc/{name}" for name in _MASKED_OF_PROC), "/sys/firmware", "/sys/devices/virtual/powercap")
"""Paths that appear empty, because they describe the machine and not the container."""

WRITABLE_FOLDERS = (WORKSPACE, "/tmp")
"""Directories in memory that everybody inside can write to."""
_OWN_PROCESSES = 4
_SHARED_MEMORY = 64 * MIB

Tier = Literal["docker", "runc", "gvisor"]
"""Program that runs containers: a Docker engine, `runc`, or gVisor's `runsc`."""


class ContainerOptions(Section):
    """Options of the container runtimes."""

    image: str | None = None
    """docker: image with `python3` (3.11 or newer) and `bash`. The default shows the host's own programs, read-only."""
    rootfs: Path | None = None
    """runc, gvisor: directory with such a system."""
    pool: NonNegativeInt = 0
    """Number of containers kept ready."""
    cpus: PositiveFloat | None = None
    """Number of CPUs that one container may use."""
    network: str = "none"
    """docker: network of the engine to attach containers to."""
    socket: Path | None = None
    """docker: socket of the engine. The default is that of `DOCKER_HOST`, or the usual path."""
    user: int = Field(default=1000, ge=1, le=65533)
    """User id of the agent inside."""
    writable: bool = False
    """docker: root inside may change the image's directories. The layer lies on the engine's disk and has no size limit."""
    start_seconds: PositiveFloat = 30.0
    """Seconds to wait for a container to start."""


@dataclass(frozen=True, slots=True)
class ContainerMount:
    """Read-only host directory or file shown inside."""

    source: str
    """Path on the host."""
    target: str
    """Path inside."""


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


@dataclass(frozen=True, slots=True)
class HostRoot:
    """Host directories that a container shows: none if it has a system of its own."""

    mounts: tuple[ContainerMount, ...] = ()
    """Read-only mounts."""
    hidden: tuple[str, ...] = ()
    """Directories below the mounts that appear empty."""
    python: str = "python3"
    """Interpreter inside."""


class ContainerLauncher(ABC):
    """Program that starts containers."""

    env: Mapping[str, str] | None = None
    """Environment that the image sets; `None` if the host's programs are shown."""
    root = HostRoot()
    """Host directories that every container shows."""
    network = False
    """Containers have a network."""
    notes: tuple[str, ...] = ()
    """Missing protections, and how to get them."""
    alive = False
    """Containers can be started."""

    @abstractmethod
    async def open(self, folder: str, realm: str, lives: Callable[[str], bool]) -> None:
        """Prepare, and remove the remains of dead servers of this realm. The directory's name is this server's name.

        :raises IsolationUnavailable: if containers cannot be used.
        """

    @abstractmethod
    async def launch(self, plan: ContainerPlan) -> Container:
        """Start a container.

        :raises IsolationUnavailable: if it cannot be started.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything; all containers have ended."""


def exit_reason(status: int) -> str:
    """Return the reason for an exit status in a few words."""
    if status == OLD_PYTHON:
        return "its python3 is older than 3.11"
    return f"its init process exited with status {status}"
