"""What a user may say about containers."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentflow.settings import Section

__all__ = ["ContainerOptions", "Tier"]

Tier = Literal["docker", "runc", "gvisor"]
"""Who makes containers: a Docker engine, `runc`, or gVisor's `runsc`."""


class ContainerOptions(Section):
    """Options of the container runtimes."""

    image: str | None = None
    """docker: an image with `python3` (3.11 or newer) and `bash`; by default the machine's own programs are shown, read-only."""
    rootfs: Path | None = None
    """runc, gvisor: the same as a folder with such a system in it."""
    pool: NonNegativeInt = 0
    """Containers kept ready."""
    cpus: PositiveFloat | None = None
    """Processors that one container may use."""
    network: str = "none"
    """docker: the engine's network that containers are in."""
    socket: Path | None = None
    """docker: the engine's socket; by default that of `DOCKER_HOST`, or the usual one."""
    user: int = Field(default=1000, ge=1, le=65533)
    """The agent's user id inside."""
    writable: bool = False
    """docker: root inside may change the image's folders, in a layer on the engine's disk that has no limit."""
    start_seconds: PositiveFloat = 30.0
    """Time for a container to start to answer."""
