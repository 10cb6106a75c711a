"""User settings of the container runtimes."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from agentflow.settings import Section

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
