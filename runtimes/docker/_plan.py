"""What a container is to be, in words that every way of starting one understands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runtimes._protocol import MIB, WORKSPACE, Limits

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
"""What the keeper has; what it starts for the agent has none of them."""

_OWN_PROCESSES = 4
_SHARED_MEMORY = 64 * MIB


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only folder or file of this machine, shown inside."""

    source: str
    """Its path here."""
    target: str
    """Its path inside."""


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A folder in memory."""

    target: str
    """Its path inside."""
    bytes: int
    """How much fits."""
    files: int
    """How many files fit."""
    mode: str = "1777"
    """Its permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One container."""

    name: str
    """A name that is unique on this machine."""
    argv: tuple[str, ...]
    """Its first program: the keeper."""
    env: Mapping[str, str]
    """That program's environment."""
    mounts: tuple[Mount, ...]
    """What it sees of this machine."""
    hidden: tuple[str, ...]
    """Folders that appear empty."""
    limits: Limits
    """Its limits."""
    image: str | None = None
    """An image for this one alone, which ends with it; by default that of the runtime."""

    @property
    def folders(self) -> tuple[Tmpfs, ...]:
        """Where it can write."""
        disk, files = self.limits.disk_bytes, self.limits.files
        return (Tmpfs(WORKSPACE, disk, files), Tmpfs("/tmp", disk, files))

    @property
    def shared_memory(self) -> int:
        """Bytes of `/dev/shm`."""
        return min(_SHARED_MEMORY, self.limits.disk_bytes)

    @property
    def processes(self) -> int | None:
        """The process limit, with room for the keeper and its helpers."""
        return None if self.limits.processes is None else self.limits.processes + _OWN_PROCESSES


class Container(Protocol):
    """One container that was started."""

    async def failed(self) -> str:
        """Wait until it ends by itself; returns why, in one line."""
        ...

    async def layer(self) -> str | None:
        """An image of all but its workspace, to start one more container of; `None` where nothing there can change."""
        ...

    async def commit(self, image: str) -> None:
        """Keep all but its workspace as an image of that name.

        :raises NotOffered: if it can't be.
        """
        ...

    async def end(self) -> None:
        """End it and remove all of it. Fine if it has ended."""
        ...


class Launcher(Protocol):
    """A way of starting containers."""

    @property
    def python(self) -> str:
        """The interpreter inside."""
        ...

    @property
    def env(self) -> Mapping[str, str] | None:
        """What the image sets; `None` where the machine's own programs are shown."""
        ...

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What every container sees of this machine."""
        ...

    @property
    def hidden(self) -> tuple[str, ...]:
        """Folders in those that appear empty."""
        ...

    @property
    def network(self) -> bool:
        """Containers have a network."""
        ...

    @property
    def alive(self) -> bool:
        """It can start containers."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing, and how to get it."""
        ...

    async def open(self, folder: str, realm: str, lives: Callable[[str], bool]) -> None:
        """Get ready, and remove what servers of this realm left that are not alive. Its own name is the folder's.

        :raises IsolationUnavailable: in one line, if containers can't be had.
        """
        ...

    async def launch(self, plan: Plan) -> Container:
        """Start a container.

        :raises IsolationUnavailable: if it can't be had.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; all containers have ended."""
        ...
